"""What was done in parts of a stretch: tokens, rows and work; and which gaps were late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.harness.compare import account_ratios, offline_system
from bench.harness.engine.step_record import StepRecord
from bench.harness.measure.account import account, accounts, settled
from bench.harness.measure.counters import Counters
from bench.harness.measure.latency import Online, Slo, late_gaps_share
from bench.harness.measure.prices import Prices
from bench.harness.measure.steps import Ran
from bench.harness.measure.stretch import Span, Stretch, ran_between
from bench.harness.measure.work import Work
from bench.scenarios.coserving import cycle
from bench.scenarios.coserving.phases import NAMES
from harvester.errors import UsageError
from harvester.policy.model.load import StepLoad

PRICES = Prices(0.001, 0.0, 0.01, 0.0)
STEP = StepLoad.prefill(100)  # 0.1 s of work


def stretch(tokens: list[int], steps: list[Ran], rows_s: list[float], requests: list[Online] | None = None) -> Stretch:
    """Counters at ``tokens``, five seconds between two samples, from second 100 of the clock on."""
    samples = [Counters(100.0 + 5 * index, count, 0, 0, 0) for index, count in enumerate(tokens)]
    return Stretch(5.0 * (len(tokens) - 1), 5.0, requests or [], samples, Work(1, 1, 0), True, steps, rows_s)


def step(at_s: float, again: int = 0) -> Ran:
    return Ran(at_s, STEP, 0.2, False, again)


def test_tokens_rows_and_work_are_those_between_two_times() -> None:
    found = stretch([0, 500, 2000, 2500], [step(101.0), step(106.0), step(107.0), step(112.0)], [104.9, 105.0, 109.0, 110.0])
    middle = account([found], [(5.0, 10.0)], PRICES)
    assert middle == {
        "seconds": 5.0,
        "online_tokens_per_s": 0.0,
        "offline_tokens_per_s": 300.0,
        "total_tokens_per_s": 300.0,
        "rows_per_s": 0.4,
        "work_per_s": 0.04,
        "busy_share": 0.08,
    }
    whole = account([found], [(0.0, 15.0)], PRICES)
    assert (whole["total_tokens_per_s"], whole["rows_per_s"]) == (round(2500 / 15, 1), round(4 / 15, 4))


def test_several_parts_and_rounds_are_one_sum() -> None:
    one = stretch([0, 500, 2000, 2500], [step(101.0)], [101.0, 111.0])
    other = stretch([0, 100, 200, 300], [step(111.0), step(112.0)], [106.0])
    found = account([one, other], [(0.0, 5.0), (10.0, 15.0)], PRICES)
    assert found["seconds"] == 20.0
    assert found["total_tokens_per_s"] == (500 + 500 + 100 + 100) / 20
    assert found["rows_per_s"] == 2 / 20
    assert found["work_per_s"] == pytest.approx(0.3 / 20)


def test_what_is_computed_again_is_no_work_and_takes_time_all_the_same() -> None:
    found = account([stretch([0, 0], [step(101.0), step(102.0, again=100)], [])], [(0.0, 5.0)], PRICES)
    assert found["work_per_s"] == 0.02
    assert found["busy_share"] == 0.08


def test_a_part_without_two_samples_was_not_measured() -> None:
    found = account([stretch([0, 100], [], [])], [(4.0, 5.0)], PRICES)
    assert set(found.values()) == {None}
    assert account([stretch([0, 100], [], [])], [], PRICES) == found


def test_chat_settles_after_some_time_in_each_part_of_it() -> None:
    assert settled([(0.0, 40.0), (80.0, 120.0)], 15.0) == [(15.0, 40.0), (95.0, 120.0)]
    assert settled([(0.0, 15.0)], 15.0) == []


def test_the_time_before_chat_has_settled_is_left_out_of_one_account_and_in_the_other() -> None:
    """Prompts at first, answers later: tokens tell the first second to be the best, rows tell the opposite."""
    found = accounts([stretch([0, 4000, 4100, 4200], [], [107.0, 111.0])], [(0.0, 15.0)], 5.0, PRICES)
    assert found["rows_per_s"] == round(2 / 15, 4)
    assert (found["settled"]["from_s"], found["settled"]["seconds"]) == (5.0, 10.0)
    assert (found["settled"]["total_tokens_per_s"], found["settled"]["rows_per_s"]) == (20.0, 0.2)


def test_ratios_are_those_of_rows_and_work_and_of_all_three_once_settled() -> None:
    ours = {"rows_per_s": 2.0, "work_per_s": 0.5, "settled": {"total_tokens_per_s": 80.0, "rows_per_s": None, "work_per_s": 0.6}}
    peer = {"rows_per_s": 4.0, "work_per_s": 0.8, "settled": {"total_tokens_per_s": 100.0, "rows_per_s": 2.0, "work_per_s": 0.0}}
    assert account_ratios({"harvester": ours, "vllm_priority": peer}) == {
        "rows_harvester_over_vllm_priority": 0.5,
        "work_harvester_over_vllm_priority": 0.625,
        "settled_total_tokens_harvester_over_vllm_priority": 0.8,
        "settled_rows_harvester_over_vllm_priority": None,
        "settled_work_harvester_over_vllm_priority": None,
    }


def test_offline_work_alone_has_rows_and_work() -> None:
    found = offline_system(Span(100.0, 5.0, [step(1.0), step(2.0)], [1.0]), 2048, PRICES)
    assert (found["rows_per_s"], found["work_per_s"]) == (0.2, 0.04)


def test_an_engine_s_rows_are_its_offline_requests_or_all_where_no_chat_comes(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "one.steps")
    record.engine(100, 16)
    for at_s, offline in ((9.0, True), (10.0, True), (11.0, False), (20.0, True)):
        record.planned(STEP, {}, at_s - 0.5)
        record.ended(SimpleNamespace(request_id="row", num_prompt_tokens=30, num_output_tokens=2), offline, at_s)
        record.answered(at_s, False)
    counts = tmp_path / "one.counts"
    assert ran_between(counts, 10.0, 20.0)[1] == [10.0]
    assert ran_between(counts, 10.0, 20.0, every=True)[1] == [10.0, 11.0]
    assert [step.at_s for step in ran_between(counts, 10.0, 20.0)[0]] == [10.0, 11.0]


def test_a_gap_is_late_above_the_slo_and_not_at_it() -> None:
    requests = [Online(0.0, 0.0, 1, [(1.0, 1), (1.5, 2), (2.0, 3), (2.75, 4)], True, 2.75), Online(0.0, 0.0, 1, [(1.0, 1)], True, 1.0)]
    assert late_gaps_share(requests, Slo(1000.0, 500.0)) == round(1 / 3, 5)
    assert late_gaps_share(requests, Slo(1000.0, 750.0)) == 0.0
    assert late_gaps_share(requests[1:], Slo(1000.0, 750.0)) is None


def test_phases_part_the_time_in_three() -> None:
    found = stretch([0, 100, 200, 1200, 2200, 2300, 2400], [], [])
    parts = [(10.0 * number, 10.0 * (number + 1)) for number in range(len(NAMES))]
    assert [account([found], [part], PRICES)["offline_tokens_per_s"] for part in parts] == [20.0, 200.0, 20.0]


def test_each_cycle_is_chat_and_then_none() -> None:
    assert cycle.chat_parts(32.0, 6.0, 2) == [(0.0, 10.0), (16.0, 26.0)]
    with pytest.raises(UsageError, match="4 cycles in 24 s"):
        cycle.chat_parts(24.0, 6.0, 4)


def test_the_outcome_of_whole_cycles_counts_each_of_them() -> None:
    chat = [Online(at_s, at_s, 10, [(at_s + 1.0, 1), (at_s + 1.1, 2)], True, at_s + 1.1) for at_s in (0.0, 10.0)]
    given = replace(cycle.QUICK, seconds=20.0, idle_s=5.0, settle_s=0.0)
    ours = stretch([0, 100, 400, 500, 800], [step(101.0), step(107.0)], [103.0, 108.0, 118.0], chat)
    peer = stretch([0, 200, 500, 700, 1000], [step(101.0), step(107.0), step(112.0), step(118.0)], [103.0, 108.0, 113.0, 118.0], chat)
    systems = {"online_only": stretch([0, 12, 12, 24, 24], [], [], chat), "vllm_priority": peer, "harvester": ours}
    found = cycle.outcome(systems, cycle.chat_parts(20.0, 5.0, 2), given, PRICES)
    assert found["spread"]["rows_harvester_over_vllm_priority"] == {"ratio": 0.75, "rounds": [1.0, 0.5]}
    assert found["spread"]["total_tokens_harvester_over_vllm_priority"]["rounds"] == [0.8, 0.8]
    assert found["ratios"]["rows_harvester_over_vllm_priority"] == 0.75
    assert found["ratios"]["work_harvester_over_vllm_priority"] == 0.5
    ours_found = found["systems"]["harvester"]
    assert [each["total_tokens_per_s"] for each in ours_found["cycles"]] == [40.0, 40.0]
    assert (ours_found["chat"]["total_tokens_per_s"], ours_found["idle"]["total_tokens_per_s"]) == (20.0, 60.0)
    assert {name: goal["met"] for name, goal in found["goals"].items()} == {
        "rows_over_vllm_priority_at_least_0.98": False,
        "p99_ttft_over_online_only_at_most_1.10": True,
        "late_gaps_share_at_most_0.01": True,
    }


@pytest.mark.parametrize(
    ("rows", "ttft", "late", "met"),
    [(0.98, 1.1, 0.01, [True, True, True]), (0.979, 1.101, 0.0101, [False] * 3), (None, None, None, [False] * 3)],
    ids=["at the goal", "beyond it", "not measured"],
)
def test_a_goal_is_met_at_its_bound(rows: float | None, ttft: float | None, late: float | None, met: list[bool]) -> None:
    ratios = {"rows_harvester_over_vllm_priority": rows, "p99_ttft_harvester_over_online_only": ttft}
    assert [goal["met"] for goal in cycle.goals(ratios, late).values()] == met
