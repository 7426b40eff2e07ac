"""Scenario ``ceiling``: no system exceeds the bound for its own longest gap, and what the scenario writes down."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.harness.load.arrivals import Arrival
from bench.harness.options import Options
from bench.scenarios.ceiling import ceiling
from bench.scenarios.ceiling.bound import Prices, Room, best
from bench.scenarios.ceiling.cases import CASES, Case, Noise, cpu_s
from bench.scenarios.ceiling.systems import Bench, Played
from harvester.errors import UsageError
from harvester.policy.model.load import StepLoad
from harvester.sim.trace import Fixed

SECONDS = 20.0
EDGE = 1.03  # allows for a step that crosses the window's end, and for whole requests; in the bound they are fluid


def tiny(times_s: list[float], chat: tuple[int, int], row: tuple[int, int], slots: int, kv_tokens: int) -> Case:
    arrivals = [Arrival(at_s, *chat) for at_s in times_s]
    return Case(cpu_s, kv_tokens // 32, slots, 2048, 32, 8, lambda seconds, draw: arrivals, Fixed(*row), (4096, row[1]), Noise(0.0), 8.0)


@st.composite
def tiny_cases(draw: st.DrawFn) -> Case:
    times_s = sorted(draw(st.lists(st.floats(0.0, SECONDS - 1.0), min_size=1, max_size=60)))
    chat = draw(st.integers(4, 600)), draw(st.integers(2, 80))
    row = draw(st.integers(16, 2000)), draw(st.integers(2, 120))
    return tiny(times_s, chat, row, draw(st.integers(4, 32)), draw(st.sampled_from((16_384, 65_536))))


def work_s(played: Played) -> float:
    return played.marks[-1].work_s - played.marks[0].work_s


# One long gap and four slots: a bound that tries no pace of chat far below that gap finds no slot for rows.
FEW_SLOTS = tiny([0.0, 0.1, 4.0, *[5.0] * 12, 9.0], (600, 60), (16, 2), 4, 16_384)


def check_bound(case: Case, seed: int, tpot_s: float) -> None:
    bench = Bench(case, SECONDS, seed)
    for played in (bench.harvester(0.3, tpot_s), bench.priority()):
        longest_s = max(played.gaps_s)
        bound = best(bench.room, bench.chat, bench.rows(), longest_s, (0.0, SECONDS))
        assert work_s(played) <= EDGE * bound.work_s * max(1.0, (played.marks[-1].at_s - played.marks[0].at_s) / SECONDS)


@settings(max_examples=3, deadline=None)
@example(case=FEW_SLOTS, seed=0, tpot_s=0.24)
@given(case=tiny_cases(), seed=st.integers(0, 3), tpot_s=st.floats(0.02, 0.3))
def test_no_system_exceeds_the_bound_of_its_own_longest_gap(case: Case, seed: int, tpot_s: float) -> None:
    check_bound(case, seed, tpot_s)


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(case=tiny_cases(), seed=st.integers(0, 3), tpot_s=st.floats(0.02, 0.3))
def test_no_system_exceeds_the_bound_in_more_cases(case: Case, seed: int, tpot_s: float) -> None:
    check_bound(case, seed, tpot_s)


def test_the_bound_without_chat_is_what_full_steps_leave_of_the_time() -> None:
    room = Room(cpu_s, 10_000, 10**9, cpu_s(StepLoad(2048)))
    bound = best(room, [], [(1000, 2)], 0.05, (0.0, 100.0))
    assert bound.work_s == pytest.approx(100.0 * (1 - 0.006 / room.longest_s), rel=0.01)
    assert bound.tokens == bound.offline_tokens == pytest.approx(1001 * bound.rows)


def test_a_longer_gap_and_more_slots_never_lower_the_bound() -> None:
    chat = [Arrival(at_s / 2, 160, 32) for at_s in range(100)]
    room = Room(cpu_s, 32, 65_536, cpu_s(StepLoad(2048)))
    by_gap = [best(room, chat, [(1407, 96)], gap_s, (0.0, 50.0)).work_s for gap_s in (0.02, 0.05, 0.1, 0.5)]
    by_slots = [best(replace(room, slots=slots), chat, [(1407, 96)], 0.05, (0.0, 50.0)).work_s for slots in (4, 8, 16, 64)]
    assert all(more >= less for each in (by_gap, by_slots) for less, more in pairwise(each))
    assert by_gap[-1] > by_gap[0]
    assert by_slots[-1] > by_slots[0]


def test_chat_counts_with_what_of_it_lies_in_the_window() -> None:
    chat, room = [Arrival(0.0, 100, 3), Arrival(60.0, 200, 3)], Room(cpu_s, 8, 65_536, 0.5)
    halves = [best(room, chat, [(100, 2)], 1.0, window) for window in ((0.0, 50.0), (50.0, 100.0))]
    assert [bound.tokens - bound.offline_tokens for bound in halves] == pytest.approx([102.0, 202.0])
    cut = best(room, chat, [(100, 2)], 1.0, (0.0, 60.001))  # none of the second one's decodes is over yet, whatever their pace
    assert cut.tokens - cut.offline_tokens == pytest.approx(302.0, abs=1.0)


def test_work_is_what_each_token_is_worth_by_its_place() -> None:
    prices = Prices.of(cpu_s)
    assert prices.work_s(100, 40) == pytest.approx(40 * 2.1e-4 + 1.6e-7 * 40 * 40 / 2)
    assert prices.work_s(100, 102) - prices.work_s(100, 100) == pytest.approx(2 * 6e-4 + 9.4e-7 * (100 + 101))


def test_the_scenario_has_every_case_system_and_goal() -> None:
    found = ceiling.run(Options(seconds=16.0, quick=True))
    assert found["cases"].keys() == found["ratios"].keys() == CASES.keys()
    for case in found["cases"].values():
        assert case["systems"].keys() == {"chat_alone", "vllm_priority", "harvester", "bound"}
        assert case["systems"]["chat_alone"]["late_gaps"] <= 0.01
        assert 0.5 < case["ratios"]["work_over_bound"] < EDGE
    assert {goal["met"] for goal in found["goals"].values()} <= {True, False}
    assert len(found["goals"]) == sum(map(len, ceiling.GOALS.values()))


@pytest.mark.parametrize("options", [Options(seconds=15.0), Options(set={"seeds": 0.0}), Options(set={"slots": 3.0})])
def test_what_cannot_be_measured_is_said(options: Options) -> None:
    with pytest.raises(UsageError):
        ceiling.run(options)
