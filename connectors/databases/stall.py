"""Ends a query that makes no progress: it would hold one of the few threads that plan jobs, or a replica's, for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connectors.errors import SourceError

MAX_STALL_S = 300.0  # a sort or a group-by gives its first row only when it has read them all
AGAIN_S = 0.05


@contextmanager
def moving(interrupt: Callable[[], object], label: str) -> Iterator[Callable[[], None]]:
    """Raise `SourceError`, naming ``label``, for a query in the block that makes no progress for 300 s.

    Yields what the block calls at each progress: rows read or given. ``interrupt`` ends what runs on the connection; it is called from
    another thread.
    """
    over, late = threading.Event(), threading.Event()
    moved_s = time.monotonic()

    def moved() -> None:
        nonlocal moved_s
        moved_s = time.monotonic()

    def watch() -> None:
        while (left_s := moved_s + MAX_STALL_S - time.monotonic()) > 0:
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
                f"{label} made no progress for {MAX_STALL_S:.0f} s and was stopped; simplify it, or submit a file of its rows"
            ) from error
        raise
    finally:
        over.set()
        watcher.join()
