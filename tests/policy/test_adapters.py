"""Who gives way to a chat whose adapter has no place in a step, and which rows find a place for theirs."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from harvester.policy.admission.adapters import TURN, AdapterTurns, rows_in_the_way
from harvester.policy.admission.rule import MAX_PASSED_OF_JOB
from harvester.policy.order.offline import Fair, OfflineRow
from harvester.policy.step.view import Guarantee
from harvester.policy.view import AdapterPlaces, EngineView
from tests.policy.asked import rows_of
from tests.policy.test_brain import a_brain, row, seen

CHAT, ROW = False, True


@pytest.mark.parametrize(
    ("wanted", "running", "gone"),
    [
        (0, [(1, ROW), (2, ROW)], []),
        (1, [(1, ROW), (2, ROW)], []),
        (3, [(1, ROW), (0, ROW)], []),
        (3, [(1, ROW), (2, ROW), (1, ROW)], [1]),
        (3, [(1, CHAT), (2, ROW), (1, ROW), (2, ROW)], [1, 3]),
        (3, [(1, CHAT), (2, CHAT), (2, ROW), (0, ROW)], []),
        (3, [(1, ROW), (2, ROW)], [0]),
    ],
    ids=["no adapter", "runs already", "room", "the fewest rows", "none that a chat has", "chats have all", "a tie"],
)
def test_rows_of_one_adapter_give_way(wanted: int, running: list[tuple[int, bool]], gone: list[int]) -> None:
    assert rows_in_the_way(wanted, running, places=2) == gone


# -- rows that wait -------------------------------------------------------------------------------------------------------------------

USED_TOKENS = 1600


def held(*adapters: int, most: int = 1, chats: tuple[int, ...] = ()) -> EngineView:
    """An engine that runs requests on these adapters."""
    return seen(row("r"), free_blocks=100, adapters=AdapterPlaces(most, frozenset(adapters), frozenset(chats)))


def on(adapter: int, name: str, job: str, **rest: Any) -> OfflineRow:
    return OfflineRow(name, job, adapter=adapter, **rest)


WAITING = (on(1, "a1", "a"), on(2, "b1", "b"), on(0, "p1", "plain"), on(1, "a2", "a3"), on(3, "c1", "c"))


def entering(turns: AdapterTurns, view: EngineView, *waiting: OfflineRow) -> list[str]:
    return [one.name for one in turns.placed(rows_of(waiting or WAITING), view)(())]


@pytest.mark.parametrize(
    ("view", "names"),
    [
        pytest.param(seen(row("r")), ["a1", "b1", "p1", "a2", "c1"], id="an engine without adapters"),
        pytest.param(held(1), ["a1", "p1", "a2"], id="one place, taken"),
        pytest.param(held(2, 3, most=2), ["b1", "p1", "c1"], id="two places, taken"),
        pytest.param(held(1, most=2), ["a1", "b1", "p1", "a2", "c1"], id="a free place"),
        pytest.param(held(4, 5, most=2), ["p1"], id="places of others"),
    ],
)
def test_a_row_whose_adapter_has_no_place_is_passed_over(view: EngineView, names: list[str]) -> None:
    assert entering(AdapterTurns(), view) == names


@pytest.mark.parametrize(
    ("view", "computed", "names"),
    [
        pytest.param(held(1), TURN * USED_TOKENS - 1, ["a1", "p1", "a2"], id="before its turn is over"),
        pytest.param(held(1), TURN * USED_TOKENS, ["a1", "p1"], id="the rows behind the one that waits"),
        pytest.param(held(1, chats=(1,)), TURN * USED_TOKENS, ["a1", "p1", "a2"], id="a chat has it"),
        pytest.param(held(1, 2, 3, most=3), TURN * USED_TOKENS, ["a1", "b1", "p1", "a2", "c1"], id="nobody waits"),
    ],
)
def test_an_adapter_that_has_had_its_turn_gives_its_place_to_the_row_that_waits(view: EngineView, computed: int, names: list[str]) -> None:
    turns = AdapterTurns()
    entering(turns, view)
    turns.ran(computed)
    assert entering(turns, view) == names


def test_the_adapter_that_came_first_gives_up_its_place_and_no_other() -> None:
    turns = AdapterTurns()
    entering(turns, held(2))
    turns.ran(1)
    entering(turns, held(1, 2, most=2))
    turns.ran(TURN * USED_TOKENS)
    waiting = (on(3, "c", "c"), on(1, "a", "a"), on(2, "b", "b"))
    assert entering(turns, held(1, 2, most=2), *waiting) == ["a"]


def test_a_job_that_is_passed_over_costs_a_look_at_some_of_its_rows() -> None:
    looked = list[str]()
    order = Fair()
    for number in range(10 * MAX_PASSED_OF_JOB):
        order.add(on(2, f"b{number}", "b", arrival_s=float(number)))
    order.add(on(1, "a", "a"))

    def rows(passed: Any) -> Any:
        for one in order.rows(passed):
            looked.append(one.name)
            yield one

    assert [one.name for one in AdapterTurns().placed(rows, held(1))(())] == ["a"]
    assert len(looked) == MAX_PASSED_OF_JOB + 1


def test_a_late_job_whose_adapter_has_no_place_keeps_nobody_out() -> None:
    brain = a_brain()
    brain.arrive(on(2, "late", "late", guarantee=Guarantee(0.5)), 0.0)
    brain.arrive(on(1, "other", "other"), 0.0)
    assert brain.plan(held(1)).admit == ("other",)
    assert brain.plan(held(1, most=2)).admit == ("late", "other")


SLOTS, PROMPT = 8, 20


def test_two_jobs_share_one_place_in_turns_and_the_engine_seldom_runs_empty() -> None:
    """Each adapter has its place for a while: the engine empties once in each turn, not once in each generation of rows."""
    turns, order, served = AdapterTurns(), Fair(), Counter[str]()
    for job, adapter in (("a", 1), ("b", 2)):
        for number in range(400):
            order.add(on(adapter, f"{job}{number}", job, arrival_s=float(number), max_tokens=4 + number * 37 % 57))
    running: dict[str, int] = {}  # tokens made
    empty, furthest, steps = 0, 0, 2000
    for _ in range(steps):
        used = sum(PROMPT + made for made in running.values())
        adapters = frozenset(order.known[name].adapter for name in running)
        view = seen(total_blocks=10_000, free_blocks=10_000 - used, block_tokens=1, adapters=AdapterPlaces(1, adapters, frozenset()))
        for one in list(islice(turns.placed(order.rows, view)(()), SLOTS - len(running))):
            if not adapters or one.adapter in adapters:
                adapters = frozenset((one.adapter,))
                order.take(one.name)
                running[one.name] = 0
        empty += SLOTS - len(running)
        for name in list(running):
            tokens, job = 1 if running[name] else PROMPT, order.known[name].job
            running[name] += 1
            served[job] += tokens
            order.charge(job, tokens)
            turns.ran(tokens)
            if running[name] == order.known[name].max_tokens:
                del running[name]
                order.end(name)
        furthest = max(furthest, abs(served["a"] - served["b"]))
    assert len(order) > 0, "both jobs had work all the while"
    assert furthest < 4000, "a row has 52 tokens on average: that is ten generations of eight"
    assert empty / (steps * SLOTS) < 0.15, "0.40 where a row without a place keeps those behind it out"
