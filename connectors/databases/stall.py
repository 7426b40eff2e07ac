"""Ends a query that makes no progress: it would hold one of the few threads that plan jobs, or a replica's, for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connectors.errors import SourceError

MAX_STALL_S = 300.0
# Of a database only the rows that it gives are seen, and a sort or a group-by reads all before it gives one.
MAX_UNSEEN_S = 3600.0
AGAIN_S = 0.05


@contextmanager
def moving(interrupt: Callable[[], object], label: str, *, sees_reads: bool = True) -> Iterator[Callable[[], None]]:
    """Raise `SourceError`, naming ``label``, for a query in the block that makes no progress for 300 s.

    With ``sees_reads=False`` only the rows that it gives are seen, and it has an hour.

    Yields what the block calls at each progress: rows read or given. ``interrupt`` ends what runs on the connection; it is called from
    another thread.
    """
    over, late = threading.Event(), threading.Event()
    moved_s = time.monotonic()
    most_s = MAX_STALL_S if sees_reads else MAX_UNSEEN_S

    def moved() -> None:
        nonlocal moved_s
        moved_s = time.monotonic()

    def watch() -> None:
        while (left_s := moved_s + most_s - time.monotonic()) > 0:
            if over.wait(left_s):
                return
        late.set()
        interrupt()
        while not over.wait(AGAIN_S):  # one that comes between two statements stops neither
            interrupt()

    watcher = threading.Thread(target=watch, name="query-stall", daemon=True)
    watcher.start()
    try:
        yield moved
    except Exception as error:
        if late.is_set():
            raise SourceError(
                f"{label} made no progress for {most_s:.0f} s and was stopped; simplify it, or submit a file of its rows"
            ) from error
        raise
    finally:
        over.set()
        watcher.join()
