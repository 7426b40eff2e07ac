"""What a plan does, counted in lines of Python and not in time, is the same whether 200 chats wait or 20,000."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import pytest

from harvester.policy.model.latency import StepLoad
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import ONLINE_ORDERS, PartsConfig
from harvester.policy.ran import StepRan
from harvester.policy.view import EngineView
from harvester.policy.waiting import Waiting, WaitingOnline
from tests.policy.test_brain import a_brain, chat

STEPS = 5
FEW, MANY = 200, 20_000


class Unseen(WaitingOnline):
    """A crowd that nobody may look through."""

    def __iter__(self) -> Iterator[Waiting]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("a plan looks at every chat that waits")


def lines_of(order: str, crowd: int) -> int:
    """Lines that the brain runs for some steps, each with an arrival."""
    brain = a_brain(replace(PartsConfig(), online_order=order))
    waiting = Unseen()
    for number in range(crowd):
        _arrive(brain, waiting, f"waits-{number}", number)
    for number in range(8):
        brain.arrive(OnlineRequest(f"runs-{number}", due_s=9.0), 0.0)
    running = tuple(chat(f"runs-{number}") for number in range(8))
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for step in range(STEPS):
            _arrive(brain, waiting, f"late-{step}", step)
            now_s = 1.0 + 0.01 * step
            brain.plan(EngineView(running, waiting, free_blocks=100, total_blocks=200, max_seqs=8, now_s=now_s, block_tokens=16))
            brain.observe(StepRan(StepLoad.decode(8), [one.name for one in running], {}), 0.01, now_s)
    finally:
        sys.settrace(before)
    return lines


def _arrive(brain: Any, waiting: WaitingOnline, name: str, number: int) -> None:
    due_s = 1000.0 + number % 97
    brain.arrive(OnlineRequest(name, prompt_tokens=1 + number % 31, due_s=due_s), 0.0)
    waiting.add(Waiting(name, 50, 4, due_s))


@pytest.mark.parametrize("order", ONLINE_ORDERS)
def test_a_plan_costs_the_same_whatever_number_waits(order: str) -> None:
    few, many = lines_of(order, FEW), lines_of(order, MANY)
    assert many < 1.5 * few + 200
