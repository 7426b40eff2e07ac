"""The queue between the engine's processes, with a clock of the test's own."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
from vllm.distributed.device_communicators import shm_broadcast

from harvester.engine.shared import backoff as waiting
from harvester.engine.vllm import platform


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(waiting, "time", found)
    return found


def test_the_longer_the_wait_the_longer_the_sleep_up_to_its_bound(clock: Clock) -> None:
    patience = waiting.PollBackoff()
    for _ in range(200):
        patience()
    assert clock.slept_s[0] == waiting.MIN_S
    assert clock.slept_s == sorted(clock.slept_s)
    assert clock.slept_s[-1] == waiting.MAX_S


def test_a_new_wait_begins_with_the_shortest_sleep(clock: Clock) -> None:
    patience = waiting.PollBackoff()
    for _ in range(200):
        patience()
    clock.now_s += 2 * waiting.NEW_WAIT_S
    patience()
    assert clock.slept_s[-1] == waiting.MIN_S


def test_vllms_queue_asks_the_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: Any = shm_broadcast  # which exports it to nobody
    monkeypatch.setattr(queues, "sched_yield", queues.sched_yield)
    platform.sleep_between_looks()
    assert isinstance(queues.sched_yield, waiting.PollBackoff)
    assert "sched_yield()" in inspect.getsource(shm_broadcast.SpinCondition.wait)


def test_around_the_time_an_answer_is_due_the_core_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_s: list[float] = []

    def look() -> None:
        looks_s.append(clock.now_s)
        clock.now_s += 0.00001

    monkeypatch.setattr(os, "sched_yield", look)
    patience = waiting.PollBackoff()
    patience.expect(clock.now_s, 0.010)
    while clock.now_s < 100.020:
        patience()
    assert 100.0085 <= min(looks_s) < 100.0085 + waiting.MAX_S
    assert 100.0115 < max(looks_s) < 100.0121
    assert len(looks_s) > 250  # and does not sleep in between
    seen = len(looks_s)
    patience.expect(clock.now_s, 0.0)
    while clock.now_s < 100.040:
        patience()
    assert len(looks_s) == seen
