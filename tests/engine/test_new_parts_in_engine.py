"""A policy that is added to a table runs in vLLM's scheduler without further ado; `tests.sim.test_new_parts` simulates the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.policy import new_parts

if TYPE_CHECKING:
    from bench.harness.engine.drive import Drive

pytestmark = pytest.mark.engine

BLOCK = 16


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    new_parts.enter(monkeypatch)


def a_drive(model: Path, blocks: int = 1000, slots: int = 1, **names: str) -> Drive:
    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.core.scheduler import HarvestScheduler

    schedule = {"budget": "fixed", "reserve": "fixed", "safepoints": "off", "online_order": "fcfs", **names}
    share = {"reserved_slots": 2, "reserved_kv": 0.1, "offline_step_tokens": 64}
    return Drive(model, HarvestScheduler, blocks, slots, BLOCK, {"share": share, "schedule": schedule})


def ended(drive: Drive) -> list[str]:
    """Names in the order in which they ended."""
    for _ in range(100):
        drive.step()
        if len(drive.finished) == len(drive.requests):
            return list(drive.finished)
    raise AssertionError(f"only {sorted(drive.finished)} have ended after 100 steps")


@pytest.mark.parametrize(("order", "expected"), [("fcfs", "abc"), ("newest", "cba")])
def test_a_new_online_order_says_whose_turn_it_is(model: Path, order: str, expected: str) -> None:
    drive = a_drive(model, online_order=order)
    for name in "abc":
        drive.add(name, 8, 4, offline=False)
    assert ended(drive) == list(expected)


@pytest.mark.parametrize(("order", "first"), [("fcfs", "abc"), ("one_by_one", "a")])
def test_who_has_no_turn_waits_for_one_and_is_neither_lost_nor_passed_by_a_row(model: Path, order: str, first: str) -> None:
    drive = a_drive(model, slots=8, online_order=order)
    drive.add("row", 8, 40, offline=True)
    for name, tokens in zip("abc", (8, 4, 2), strict=True):
        drive.add(name, 8, tokens, offline=False)
    assert set(drive.step()) == set(first)
    assert ended(drive) == [*(reversed("abc") if order == "fcfs" else "abc"), "row"]


@pytest.mark.parametrize(("order", "expected"), [("fcfs", ["long", "short", "middle"]), ("smallest", ["short", "middle", "long"])])
def test_a_new_offline_order_says_which_row_is_admitted_next(model: Path, order: str, expected: list[str]) -> None:
    drive = a_drive(model, offline_order=order)
    for name, tokens in (("long", 64), ("short", 8), ("middle", 32)):
        drive.add(name, tokens, 4, offline=True)
    assert ended(drive) == expected


@pytest.mark.parametrize(("admission", "expected"), [("worst", 3), ("half", 6)])
def test_a_new_admission_rule_says_how_many_rows_are_admitted(model: Path, admission: str, expected: int) -> None:
    drive = a_drive(model, blocks=61, slots=16, admission=admission)  # vLLM keeps one block for itself
    for number in range(9):
        drive.add(f"r{number}", 16, 304, offline=True)
    drive.step()
    assert len(drive.running) == expected
