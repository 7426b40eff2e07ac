"""Runs work in a thread and cleans its result up if the awaiting task was cancelled meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[], T], unmake: Callable[[T], object] | None = None) -> T:
    """The result of ``work``, which runs in one of ``threads``.

    If the awaiting task is cancelled, work that has not begun is dropped. Work that has begun goes on to its end, and ``unmake`` then gets
    its result, also in one of ``threads``.
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
