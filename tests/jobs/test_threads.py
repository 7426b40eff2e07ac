"""Threads that no client holds alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from jobs.threads import FairThreads

PATIENCE_S = 20.0


class Held:
    """Work that waits until it is let go. ``begun``: whose, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let_go = threading.Event()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.begun.append(name)
            assert self.let_go.wait(PATIENCE_S)
            return name

        return run


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.let_go.set()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - threads have no event for it
            await asyncio.sleep(0.001)


async def test_a_client_holds_its_part_and_waits_for_it(held: Held) -> None:
    threads = FairThreads("test", 3, 2)
    asked = [asyncio.create_task(threads.run("ann", held.work(f"ann {number}"))) for number in range(4)]
    await until(lambda: len(held.begun) == 2)
    other = asyncio.create_task(threads.run("bob", held.work("bob")))
    await until(lambda: len(held.begun) == 3)
    assert set(held.begun) == {"ann 0", "ann 1", "bob"}
    held.let_go.set()
    assert await asyncio.gather(*asked, other) == ["ann 0", "ann 1", "ann 2", "ann 3", "bob"]


async def test_next_is_the_client_that_holds_the_fewest(held: Held) -> None:
    threads = FairThreads("test", 2, 2)
    asked = [asyncio.create_task(threads.run("ann", held.work(f"ann {number}"))) for number in range(3)]
    await until(lambda: len(held.begun) == 2)
    asked.append(asyncio.create_task(threads.run("bob", held.work("bob"))))
    await asyncio.sleep(0)
    held.let_go.set()
    await asyncio.gather(*asked)
    assert held.begun[2:] == ["bob", "ann 2"]


async def test_work_that_nobody_waits_for_holds_its_thread_until_it_ends(held: Held) -> None:
    threads, unmade = FairThreads("test", 1, 1), list[str]()
    begun = asyncio.create_task(threads.run("ann", held.work("ann"), unmade.append))
    await until(lambda: held.begun)
    waiting = [asyncio.create_task(threads.run(name, held.work(name))) for name in ("ben", "bob")]
    await asyncio.sleep(0)
    for task in (begun, waiting[0]):
        task.cancel()
    await asyncio.gather(begun, waiting[0], return_exceptions=True)
    assert (held.begun, unmade) == (["ann"], [])
    held.let_go.set()
    assert await waiting[1] == "bob"
    assert (held.begun, unmade) == (["ann", "bob"], ["ann"])


async def test_a_turn_that_comes_as_its_client_leaves_goes_to_the_next(held: Held) -> None:
    threads = FairThreads("test", 1, 1)
    first = asyncio.create_task(threads.run("ann", held.work("ann")))
    await until(lambda: held.begun)
    second, third = [asyncio.create_task(threads.run(name, held.work(name))) for name in ("ben", "bob")]
    await asyncio.sleep(0)
    first.add_done_callback(lambda _: second.cancel())
    held.let_go.set()
    assert await third == "bob"
    await asyncio.gather(second, return_exceptions=True)


async def test_who_has_no_name_may_hold_all_threads(held: Held) -> None:
    threads = FairThreads("test", 3, 1)
    asked = [asyncio.create_task(threads.run(None, held.work("nobody"))) for _ in range(3)]
    await until(lambda: len(held.begun) == 3)
    held.let_go.set()
    assert await asyncio.gather(*asked) == ["nobody"] * 3
    await asyncio.to_thread(threads.shutdown)
