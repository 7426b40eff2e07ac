"""When a model without replicas is asked for, how often, and what a client is told of when it answers."""

from __future__ import annotations

import asyncio
import logging
import warnings

import pytest

from harvester.errors import NoReplicaError
from jobs.hint import Demand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments.scale import waking
    from harvester.serve.deployments.scale.waking import AGAIN_S, LOAD_S, Waking


class Replicas:
    """Answer once they are ``loaded``."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.loaded = asyncio.Event()
        self.broken = False

    async def answered(self, model: str | None) -> None:
        self.asked.append(model)
        await self.loaded.wait()
        if self.broken:
            raise NoReplicaError("gone")


async def no_work(model: str) -> Demand:
    return Demand()


def test_a_model_is_asked_for_once_however_many_chats_come() -> None:
    async def run() -> None:
        replicas = Replicas()
        waking = Waking(replicas.answered, no_work, {None: "first", "small": "small"})
        assert waking.is_asleep()
        assert {round(waking.wake(None)) for _ in range(3)} == {LOAD_S}
        waking.wake("small")
        await asyncio.sleep(0)
        assert replicas.asked == [None, "small"]
        assert not waking.is_asleep()
        replicas.loaded.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waking.is_asleep()
        waking.wake(None)
        await asyncio.sleep(0)
        assert replicas.asked == [None, "small", None]

    asyncio.run(run())


def test_one_that_does_not_start_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # a library that another test has imported may have set the root logger to more

    async def run() -> None:
        replicas = Replicas()
        replicas.broken = True
        replicas.loaded.set()
        waking = Waking(replicas.answered, no_work, {None: "first"})
        for _ in range(2):
            waking.wake(None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert replicas.asked == [None, None]

    asyncio.run(run())
    assert "wake_failed" in caplog.text


def test_a_model_that_never_sleeps_is_not_asked_for() -> None:
    async def run() -> None:
        replicas = Replicas()
        waking = Waking(replicas.answered, no_work, {"small": "small"})
        assert (waking.may_sleep("small"), waking.may_sleep(None), waking.may_sleep("unknown")) == (True, False, False)
        assert not waking.is_asleep()
        assert waking.wake(None) == AGAIN_S
        await asyncio.sleep(0)
        assert replicas.asked == []

    asyncio.run(run())


def test_rows_to_do_wake_the_model_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "ASK_S", 0.0)

    async def run() -> None:
        replicas = Replicas()
        turns = 0

        async def demand(model: str) -> Demand:
            nonlocal turns
            turns += 1
            if turns == 1:
                raise NoReplicaError("the ledger is away")
            return Demand(has_work=model == "small")

        running = asyncio.create_task(Waking(replicas.answered, demand, {None: "first", "small": "small"}).run())
        while not replicas.asked:  # noqa: ASYNC110 - it is asked between two turns of the loop
            await asyncio.sleep(0)
        running.cancel()
        assert replicas.asked == ["small"]

    asyncio.run(run())
