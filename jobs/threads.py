"""Runs work in threads: each kind in its own, none held by one client alone; a result that nobody waits for any more is cleaned up."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar, cast

STORAGE_AT_ONCE = 16  # transfers wait for another machine, so they may be more than the cores
T = TypeVar("T")
P = ParamSpec("P")

# Starts its threads when it is used: a process may fork before.
_storage = ThreadPoolExecutor(STORAGE_AT_ONCE, thread_name_prefix="storage")


async def with_storage(work: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
    """As `asyncio.to_thread`, for work that may wait for a storage: it leaves the default threads to what waits for no other machine."""
    run = partial(contextvars.copy_context().run, work, *given, **options)
    return await asyncio.get_running_loop().run_in_executor(_storage, run)


async def in_thread(
    threads: ThreadPoolExecutor,
    work: Callable[[], T],
    unmake: Callable[[T], object] | None = None,
    ended: Callable[[], None] | None = None,
) -> T:
    """The result of ``work``, which runs in one of ``threads``.

    If the awaiting task is cancelled, work that has not begun is dropped. Work that has begun goes on to its end, and ``unmake`` then gets
    its result, also in one of ``threads``. ``ended`` is called on the event loop once no thread is at the work any more.
    """
    loop, lock = asyncio.get_running_loop(), threading.Lock()
    begun, gone, made = threading.Event(), threading.Event(), list[T]()

    def handed_over() -> T | None:
        with lock:
            if gone.is_set():
                return None
            begun.set()
        try:
            result = work()
            with lock:
                if not gone.is_set():
                    made.append(result)
                    return result
            if unmake is not None:
                unmake(result)
            return result
        finally:
            if ended is not None:
                with suppress(RuntimeError):  # the event loop was closed meanwhile
                    loop.call_soon_threadsafe(ended)

    try:
        return cast(T, await loop.run_in_executor(threads, handed_over))
    except asyncio.CancelledError:
        with lock:
            gone.set()
        if not begun.is_set() and ended is not None:
            ended()
        if made and unmake is not None:
            threads.submit(unmake, made[0])
        raise


class FairThreads:
    """``at_once`` threads, of which the work of one client holds at most ``client_at_once``. Used from one event loop.

    Next is the client that holds the fewest; among equals the one that waits longest. Work whose awaiting task was cancelled counts until
    it ends.
    """

    def __init__(self, name: str, at_once: int, client_at_once: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        self._at_once = at_once
        self._client_at_once = client_at_once
        self._running: Counter[str | None] = Counter()
        self._waiting: dict[asyncio.Future[None], str | None] = {}  # in the order in which they came

    async def run(self, client: str | None, work: Callable[[], T], unmake: Callable[[T], object] | None = None) -> T:
        """Result of ``work`` for ``client``; None: one that may hold all threads. ``unmake``: see `in_thread`."""
        if self._may_run(client):
            self._running[client] += 1
        else:
            await self._turn(client)
        return await in_thread(self._threads, work, unmake, partial(self._leave, client))

    def shutdown(self) -> None:
        """Wait until all work has ended. Call it from a thread."""
        self._threads.shutdown()

    async def _turn(self, client: str | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = client
        try:
            await turn
        except asyncio.CancelledError:
            if turn not in self._waiting:  # it came just before
                self._leave(client)
            self._waiting.pop(turn, None)
            raise

    def _leave(self, client: str | None) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        able = [(self._running[one], turn) for turn, one in self._waiting.items() if self._may_run(one) and not turn.done()]
        if able:
            turn = min(able, key=lambda one: one[0])[1]
            self._running[self._waiting.pop(turn)] += 1
            turn.set_result(None)

    def _may_run(self, client: str | None) -> bool:
        is_free = self._running.total() < self._at_once
        return is_free and (client is None or self._running[client] < self._client_at_once)
