"""Work in a thread whose result must not be lost where nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[], T], unmake: Callable[[T], object] | None = None) -> T:
    """What ``work`` gives. Where the wait is cancelled, work that has not begun is dropped; of what has, ``unmake`` gets the result.

    ``unmake`` runs in one of ``threads`` too.
    """
    lock, is_gone, made = threading.Lock(), False, list[T]()

    def handed_over() -> T:
        result = work()
        with lock:
            if not is_gone:
                made.append(result)
                return result
        assert unmake is not None
        unmake(result)
        return result

    loop = asyncio.get_running_loop()
    if unmake is None:
        return await loop.run_in_executor(threads, work)
    try:
        return await loop.run_in_executor(threads, handed_over)
    except asyncio.CancelledError:
        with lock:
            is_gone = True
        if made:
            threads.submit(unmake, made[0])
        raise
