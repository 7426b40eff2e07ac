"""What scenario ``admission`` writes down, and its simulated part in short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.harness.measure.work import Work
from bench.scenarios.admission.admission import goals_of, ratios_of
from bench.scenarios.admission.greedy import Greedy
from bench.scenarios.admission.real import Round
from bench.scenarios.admission.real import same as same_rows
from bench.scenarios.admission.simulated import CASES, Case, run_case
from harvester.policy.step.batch import batch_of
from harvester.sim.trace import Fixed
from tests.policy.asked import LIMITS, row, view


def figures(rows_per_s: float, again: float, ttft_s: float | None = None) -> dict[str, Any]:
    return {
        "rows_per_s": rows_per_s,
        "offline_tokens_per_s": 100 * rows_per_s,
        "from_the_start": {"rows_per_s": rows_per_s / 2},
        "recomputed_share": again,
        "ttft_p99_s": ttft_s,
    }


def test_ratios_are_over_the_worst_case_and_what_is_computed_again_over_greedy() -> None:
    alone = {"worst": figures(1.0, 0.0), "expected": figures(2.0, 0.01), "greedy": figures(1.5, 0.4)}
    found = ratios_of(alone)
    assert found["rows_per_s_expected_over_worst"] == found["rows_per_s_from_the_start_expected_over_worst"] == 2.0
    assert found["offline_tokens_per_s_greedy_over_worst"] == 1.5
    assert found["recomputed_expected_over_greedy"] == 0.025
    assert "ttft_p99_expected_over_alone" not in found
    beside = {name: figures(1.0, 0.0, 0.5) for name in alone} | {"chat_alone": figures(0.0, 0.0, 0.4)}
    assert ratios_of(beside)["ttft_p99_expected_over_alone"] == 1.25
    assert ratios_of(beside)["recomputed_expected_over_greedy"] is None


@pytest.mark.parametrize(("ttft", "met"), [(1.1, True), (1.2, False)])
def test_a_goal_beside_chat_is_that_its_first_tokens_come_no_later_than_with_the_worst_case(ttft: float, met: bool) -> None:
    same = {"offline_tokens_per_s_expected_over_worst": 2.0, "rows_per_s_expected_over_worst": 1.5, "recomputed_expected_over_greedy": 0.3}
    beside = same | {"ttft_p99_expected_over_alone": ttft, "ttft_p99_worst_over_alone": 1.1}
    goals = goals_of({"short_1024": same, "short_4096": same, "real": same, "beside_chat_short_4096": beside})
    assert {name: goal["met"] for name, goal in goals.items()} == {
        "short_1024_offline_tokens_per_s_expected_over_worst": True,
        "short_1024_recomputed_over_greedy": False,
        "short_4096_offline_tokens_per_s_expected_over_worst": False,
        "short_4096_recomputed_over_greedy": False,
        "real_offline_tokens_per_s_expected_over_worst": True,
        "real_recomputed_over_greedy": False,
        "beside_chat_short_4096_rows_per_s_expected_over_worst": True,
        "beside_chat_ttft_p99": met,
    }


def test_a_load_under_which_greedy_computes_nothing_again_meets_no_goal_of_it() -> None:
    same = {"offline_tokens_per_s_expected_over_worst": 9.0, "rows_per_s_expected_over_worst": 9.0, "recomputed_expected_over_greedy": None}
    beside = same | {"ttft_p99_expected_over_alone": 1.0, "ttft_p99_worst_over_alone": 1.0}
    goals = goals_of({"short_1024": same, "short_4096": same, "real": same, "beside_chat_short_4096": beside})
    missed = [name for name, goal in goals.items() if not goal["met"]]
    assert missed == [f"{name}_recomputed_over_greedy" for name in ("short_1024", "short_4096", "real")]


def test_rows_are_the_same_only_where_one_ended_in_both() -> None:
    def ended(**tokens: list[int]) -> list[Round]:
        return [Round(1.0, 1, 0, Work(1, 1, 0), {int(row[1:]): ids for row, ids in tokens.items()})]

    assert same_rows(ended(r1=[4], r2=[5]), ended(r1=[4], r3=[9]))
    assert not same_rows(ended(r1=[4]), ended(r1=[5]))
    assert not same_rows(ended(r1=[4]), ended(r2=[4]))


def test_greedy_counts_what_a_row_knows_and_gives_all_that_is_free() -> None:
    seen = view(row(), free_blocks=7, max_seqs=4, reserve=(0, 0))
    assert Greedy().space(seen, batch_of(seen.running), LIMITS) == (3, 7)


@pytest.mark.parametrize("name", ["short_1024", "beside_chat_short_1024"])
def test_a_simulated_case_says_the_same_of_each_rule_where_answers_are_as_long_as_allowed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("QUICK_SECONDS", "CHAT_QUICK_SECONDS"):
        monkeypatch.setattr(f"bench.scenarios.admission.simulated.{bound}", 12.0)
    case: Case = replace(CASES[name], lengths=Fixed(100, 28), max_tokens=28, rows_per_s=60.0)
    found = run_case(case, True, 0)
    assert set(found) == {"worst", "expected", "greedy"} | ({"chat_alone"} if case.chats_per_s else set())
    assert found["worst"]["rows_per_s"] == pytest.approx(found["expected"]["rows_per_s"], rel=0.1)
    assert found["worst"]["rows_per_s"] > 1.0
    assert (found["worst"]["ttft_p99_s"] is None) == (not case.chats_per_s)
