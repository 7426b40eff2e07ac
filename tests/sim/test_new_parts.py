"""A policy that is added to a table is simulated as it is; `tests.engine.test_new_parts_in_engine` runs the same in vLLM's scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harvester.sim.loop import Simulation
from harvester.sim.trace import Request
from tests.policy import new_parts
from tests.sim.brains import PLAIN, a_brain, an_engine


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    new_parts.enter(monkeypatch)


def ended(requests: list[Request], slots: int = 1, **names: Any) -> list[str]:
    """Names in the order in which they ended."""
    brain = a_brain(replace(PLAIN, **names))
    return [outcome.request.id for outcome in Simulation(an_engine(max_seqs=slots), brain).run(requests)]


def test_a_new_online_order_says_whose_turn_it_is() -> None:
    chat = [Request(name, 0.0, 8, 4) for name in "abc"]
    assert ended(chat) == ["a", "b", "c"]
    assert ended(chat, online_order="newest") == ["c", "b", "a"]


def test_who_has_no_turn_waits_for_one_and_is_not_lost() -> None:
    chat = [Request(name, 0.0, 8, tokens) for name, tokens in zip("abc", (8, 4, 2), strict=True)]
    assert ended(chat, slots=8) == ["c", "b", "a"]
    assert ended(chat, slots=8, online_order="one_by_one") == ["a", "b", "c"]


def test_a_new_offline_order_says_which_row_is_admitted_next() -> None:
    rows = [Request(name, 0.0, tokens, 4, "job") for name, tokens in (("long", 64), ("short", 8), ("middle", 32))]
    assert ended(rows) == ["long", "short", "middle"]
    assert ended(rows, offline_order="smallest") == ["short", "middle", "long"]


def test_a_new_admission_rule_says_how_many_rows_are_admitted() -> None:
    rows = [Request(f"r{number}", 0.0, 16, 16, "job", max_tokens=304) for number in range(9)]
    running = {}
    for name in ("worst", "half"):
        simulation = Simulation(an_engine(total_blocks=60, max_seqs=16, max_tokens=256), a_brain(replace(PLAIN, admission=name)))
        simulation.run(rows, until_s=1.0)
        running[name] = sum(bool(outcome.token_s) for outcome in simulation.going)
    assert running == {"worst": 3, "half": 6}
