"""Print what a command waits for, if the wait is longer than a person expects."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_S, EVERY_S = 2.0, 5.0


@contextmanager
def said_if_slow(what: str, first_s: float = FIRST_S, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block runs, write ``what`` and the seconds so far to a terminal's stderr: after ``first_s``, then every ``every_s``."""
    if not sys.stderr.isatty():
        yield
        return
    began_s, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        wait_s = first_s
        while not ended.wait(wait_s):
            print(f"{what}, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
            wait_s = every_s

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()
