"""A function in a process of its own, which ends when this one is told to."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[..., T], *given: object) -> T:
    """What ``work(*given)`` gives. For engines: their metrics can be registered once in a process. Interrupted, it ends the other process
    too, in which ``work`` sees the same `KeyboardInterrupt`, and waits for it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_when_told) as process:
        found = process.submit(work, *given)
        try:
            return found.result()
        except KeyboardInterrupt:
            for child in active_children():
                child.terminate()
            raise


def _end_when_told() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
