"""When a new engine measures itself."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine


class Clock:
    """Stands for ``asyncio.sleep`` and ``time.monotonic``; work is there while `busy` says so."""

    def __init__(self, busy: list[tuple[float, float]]) -> None:
        self.now_s = 0.0
        self.busy = busy

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s

    def has_work(self) -> bool:
        return any(start_s <= self.now_s < end_s for start_s, end_s in self.busy)


def begun_at(monkeypatch: pytest.MonkeyPatch, busy: list[tuple[float, float]], *, known: bool = False) -> list[tuple[float, float]]:
    """When each profile began, and how long it was to be; one takes a second, or less where work comes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harvester.engine.launch import profiler

    clock, found = Clock(busy), []

    async def profile(llm: Any, shared: Any, seconds: float, *, short: bool) -> dict[str, Any]:
        assert short
        found.append((clock.now_s, seconds))
        while clock.now_s - found[-1][0] < seconds and not clock.has_work():
            clock.now_s += 0.5
        return {}

    monkeypatch.setattr(profiler, "profile", profile)
    monkeypatch.setattr(profiler, "asyncio", SimpleNamespace(sleep=clock.sleep))
    monkeypatch.setattr(profiler, "time", clock)
    asyncio.run(profiler.profile_when_absent(clock, None, known))  # type: ignore[arg-type]
    return found


def test_an_engine_is_measured_after_three_idle_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_at(monkeypatch, []) == [(3.0, 8.0)]


def test_work_that_comes_first_is_not_met_by_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_at(monkeypatch, [(1.0, 20.0)]) == [(22.75, 8.0)]  # the first look that saw none was at 20.0


def test_a_profile_that_work_ended_goes_on_when_the_engine_is_idle_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_at(monkeypatch, [(5.0, 10.0)]) == [(3.0, 8.0), (12.75, 6.0)]


def test_an_engine_with_a_profile_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_at(monkeypatch, [], known=True) == []
