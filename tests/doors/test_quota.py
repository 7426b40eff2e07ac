"""Rates of a key, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from harvester.config import parse_config
from harvester.core import Role
from harvester.errors import QuotaError, StorageError
from harvester.serve.access import quota
from harvester.serve.access.gate import gate_of
from harvester.serve.access.identity import Identity
from harvester.serve.access.quota import MAX_KNOWN, Quotas
from jobs.access.limits import Limits
from jobs.testing import ManualClock


def who(name: str = "ann", **limits: int) -> Identity:
    return Identity(name, frozenset({Role.CHAT}), Limits(**limits))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_refused_request_passes_when_it_was_told_to_come_again(clock: ManualClock) -> None:
    quotas, ann = Quotas(clock), who(requests_per_minute=60)
    for _ in range(60):
        with quotas.entered(ann, 1):
            pass
    with pytest.raises(QuotaError, match="60 requests a minute") as refused, quotas.entered(ann, 30):
        pass
    assert refused.value.retry_after_s == pytest.approx(30.0)
    clock.advance(29.9)
    with pytest.raises(QuotaError), quotas.entered(ann, 30):
        pass
    clock.advance(0.2)
    with quotas.entered(ann, 30):
        pass


def test_a_request_larger_than_a_minutes_worth_passes_when_the_minute_is_full(clock: ManualClock) -> None:
    quotas, ann = Quotas(clock), who(requests_per_minute=4)
    with quotas.entered(ann, 100):
        pass
    with pytest.raises(QuotaError) as refused, quotas.entered(ann, 1):
        pass
    assert refused.value.retry_after_s == pytest.approx(97 * 15.0)


def test_tokens_are_owed_until_the_minute_has_paid_for_them(clock: ManualClock) -> None:
    quotas, ann = Quotas(clock), who(tokens_per_minute=600)
    with quotas.entered(ann, 1):
        quotas.spend(ann, 900)
    with pytest.raises(QuotaError, match="600 tokens a minute") as refused, quotas.entered(ann, 1):
        pass
    assert refused.value.counted == "tokens"
    assert refused.value.retry_after_s == pytest.approx(30.1)
    clock.advance(30.2)
    with quotas.entered(ann, 1):
        pass


def test_requests_in_work_are_bounded_and_freed_however_they_end(clock: ManualClock) -> None:
    quotas, ann = Quotas(clock), who(open_requests=2)
    bob = who("bob", open_requests=2)
    with quotas.entered(ann, 1):
        with contextlib.suppress(ZeroDivisionError), quotas.entered(ann, 1):
            with pytest.raises(QuotaError, match="2 requests of this key"), quotas.entered(ann, 1):
                pass
            raise ZeroDivisionError
        with quotas.entered(ann, 1), quotas.entered(bob, 1):
            pass


def test_each_of_several_processes_allows_its_part(clock: ManualClock) -> None:
    quotas, ann = Quotas(clock, parts=3), who(requests_per_minute=30)
    for _ in range(10):
        with quotas.entered(ann, 1):
            pass
    with pytest.raises(QuotaError, match="30 requests a minute"), quotas.entered(ann, 1):
        pass


def test_names_that_nothing_is_known_against_are_forgotten(clock: ManualClock) -> None:
    quotas = Quotas(clock)
    for number in range(MAX_KNOWN + 5):
        with quotas.entered(who(f"name-{number}", requests_per_minute=60), 1):
            pass
        clock.advance(1.0)
    assert len(quotas) < MAX_KNOWN


def test_a_key_gets_its_rate_once_from_all_replicas_together(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas, asked in turns for ten minutes, let through one saved minute's worth and ten more, not twice that."""
    config = parse_config({"replicas": 2, "access": {"limits": {"requests_per_minute": 60, "tokens_per_minute": 600}}}, "test")
    monkeypatch.setattr("harvester.serve.access.gate.Meter", lambda quotas: None)  # a process can register its metrics only once
    monkeypatch.setattr("harvester.serve.access.gate.time.monotonic", clock)
    replicas = [gate_of(config, tmp_path / "keys.json", config.replicas.max) for _ in range(config.replicas.max)]
    ann, passed = replicas[0].keyless, 0
    for _ in range(6000):
        for one in replicas:
            with contextlib.suppress(QuotaError), one.quotas.entered(ann, 1):
                one.quotas.spend(ann, 10)
                passed += 1
        clock.advance(0.1)
    assert passed <= 60 + 10 * 60
    assert passed >= 10 * 60 * 0.9


async def test_a_key_keeps_its_rate_while_replicas_come_and_go(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "FOLLOW_S", 0.0)

    class Fleet:
        living_now: int | None = 4

        async def living(self, model: str, asker: str) -> int:
            assert (model, asker) == ("toy", "me")
            if self.living_now is None:
                raise StorageError("the ledger does not answer")
            return self.living_now

    fleet, quotas, ann = Fleet(), Quotas(clock), who(requests_per_minute=60, tokens_per_minute=600)
    with quotas.entered(ann, 1):
        pass
    quotas.spend(ann, 500)
    following = asyncio.create_task(quotas.follow(fleet, "toy", "me"))

    def allowed() -> int:
        count = 0
        with contextlib.suppress(QuotaError):
            while True:
                with quotas.entered(ann, 1):
                    count += 1
        return count

    for living, requests in ((4, 15), (None, 15), (1, 60), (4, 15), (0, 15)):
        fleet.living_now = living
        await asyncio.sleep(0.01)
        clock.advance(60.0)
        assert allowed() == requests, living
    following.cancel()


class Eight:
    """A ledger that knows eight replicas, or as many as it is told."""

    def __init__(self, *told: int) -> None:
        self._told = list(told)

    async def living(self, model: str, asker: str) -> int:
        return self._told.pop(0) if self._told else 8


def passed(replicas: list[Quotas], who: Identity) -> int:
    """How many requests of ``who`` pass, of those that do not end meanwhile."""
    count = 0
    with contextlib.ExitStack() as in_work:
        for one in replicas:
            with contextlib.suppress(QuotaError):
                while True:
                    in_work.enter_context(one.entered(who, 1))
                    count += 1
    return count


@pytest.mark.parametrize("ann", [who(open_requests=16), who(requests_per_minute=16)], ids=["open", "rate"])
async def test_a_key_that_is_new_to_eight_replicas_has_each_limit_once(clock: ManualClock, ann: Identity) -> None:
    """They were started for one replica, and know how many there are before the key's first request."""
    replicas = [Quotas(clock) for _ in range(8)]
    following = [asyncio.create_task(one.follow(Eight(), "toy", "me")) for one in replicas]
    await asyncio.sleep(0)
    assert passed(replicas, ann) == 16
    for task in following:
        task.cancel()


async def test_a_ledger_that_has_just_started_and_knows_few_replicas_raises_no_rate(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "FOLLOW_S", 0.0)
    for told in ((8, 1), (8, 0), (8, 0, 3)):
        quotas, ann = Quotas(clock), who(requests_per_minute=80)
        following, most = asyncio.create_task(quotas.follow(Eight(*told), "toy", "me")), 0
        for _ in range(20):
            await asyncio.sleep(0)
            clock.advance(60.0)
            most = max(most, passed([quotas], ann))
        assert most == 10, told
        following.cancel()
