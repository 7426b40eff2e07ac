"""Measuring in turns, and ratios with their spread."""

from __future__ import annotations

import random

import pytest

from bench.harness.load.checkpoint_load import Seen, Span, all_seen
from bench.harness.measure.checkpoint_report import COUNTERS, Round, goals_of, ratios_of, same
from bench.harness.measure.rounds import in_turns, pooled, ratio_of_percentiles, ratio_of_rounds
from bench.harness.measure.work import Work
from bench.harness.options import Options
from bench.scenarios.checkpoints import checkpoint, swap_link
from harvester.errors import UsageError


def test_every_other_round_goes_in_the_opposite_order() -> None:
    order: list[tuple[str, int]] = []
    found = in_turns(["a", "b"], 3, lambda name, number: order.append((name, number)) or f"{name}{number}")
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert found == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


def test_a_ratio_of_rounds_is_the_median_and_shows_each() -> None:
    assert ratio_of_rounds([2.0, 9.0, 3.0], [1.0, 3.0, 3.0]) == {"ratio": 2.0, "rounds": [2.0, 3.0, 1.0]}


@pytest.mark.parametrize("others", [[1.0, 0.0], [1.0, None]])
def test_rounds_over_nothing_have_no_ratio(others: list[float | None]) -> None:
    assert ratio_of_rounds([2.0, 9.0], others) == {"ratio": None, "rounds": []}


def test_the_spread_of_two_alike_holds_one_and_that_of_different_ones_does_not() -> None:
    rng = random.Random(1)
    ones, others = ([[rng.lognormvariate(0.0, 0.1) for _ in range(200)] for _ in range(5)] for _ in range(2))
    alike = ratio_of_percentiles(ones, others, 99, seed=2)
    assert alike["from"] < 1 < alike["to"]
    assert alike["to"] / alike["from"] < 1.4
    twice = ratio_of_percentiles([[2 * value for value in values] for values in ones], others, 99, seed=2)
    assert twice["ratio"] == pytest.approx(2 * alike["ratio"], rel=1e-3)
    assert twice["from"] > 1.5


def test_a_ratio_of_percentiles_of_nothing_is_none() -> None:
    nothing = {"ratio": None, "from": None, "to": None}
    assert ratio_of_percentiles([[]], [[0.1]], 99, seed=1) == nothing
    assert ratio_of_percentiles([[0.1]], [[], []], 99, seed=1) == nothing


def test_rounds_are_summed() -> None:
    assert pooled([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 0.5}]) == {"a": 4.0, "b": 2.5}
    whole = all_seen([Seen([0.1], [0.2], 1, {"x": [1]}, [(1.0, 2)], 3), Seen([0.3], [], 2, {"y": [2]}, [], 1)])
    assert whole == Seen([0.1, 0.3], [0.2], 3, {"x": [1], "y": [2]}, [(1.0, 2)], 4)


def test_a_span_has_only_what_came_after_its_begin() -> None:
    counted = {"copies": 3.0}
    span = Span(lambda: dict(counted))
    span.seen.ttft_s.append(9.0)
    counted["copies"] = 5.0
    span.begin()
    span.seen.ttft_s.append(0.1)
    counted["copies"] = 12.0
    span.end()
    counted["copies"] = 20.0
    assert (span.seen.ttft_s, span.done) == ([0.1], {"copies": 7.0})
    assert span.began_s <= span.ended_s


def a_round(
    latency_s: float = 1.0, lost: int = 0, ttft_s: float = 0.1, answer: int = 5, copies_s: float = 0.0, offline: int = 5000
) -> Round:
    """A round of 10 s and 10,000 tokens. Recomputed tokens took 1 ms each; 100 of them were in a step that ended early."""
    done = dict.fromkeys((*COUNTERS, "resume_s", "stored_bytes", "store_s", "loaded_bytes", "load_s"), 0.0)
    seen = Seen([ttft_s] * 50, [0.01] * 50, 50, {"1": [4, answer]}, [(latency_s, 10)])
    work = Work(100, 10_000, lost + 100, offline, 0.001 * (lost + 100))
    return Round(10.0, seen, work, done | {"taken_back_tokens": 100.0, "store_s": copies_s / 2, "load_s": copies_s / 2})


def met(found: dict[str, list[Round]], chats: dict[float, dict[str, list[Round]]]) -> dict[str, bool]:
    return {name: goal["met"] for name, goal in goals_of(found, chats, ratios_of(found)).items()}


def test_goals_are_judged_from_the_rounds() -> None:
    found = {"recompute": [a_round(lost=1500)], "incremental+partial": [a_round(copies_s=0.04)]}
    same_latency = {name: [a_round()] for name in ("chat_recompute", "chat_reactive", "chat_proactive")}
    apart = {"chat_recompute": [a_round(3.0)], "chat_reactive": [a_round(1.5)], "chat_proactive": [a_round(1.0)]}
    judged = met(found, {0.9: same_latency})
    assert judged == {
        "recomputed_share_at_most_0.01": True,
        "throughput_won_back_of_what_preemption_cost_at_least_0.98": False,
        "time_won_back_of_what_preemption_cost_at_least_0.98": False,
        "blocked_by_swapping_below_0.02": True,
        "latency_recompute_over_proactive_at_least_2.7": False,
        "latency_reactive_over_proactive_at_least_1.7": False,
    }, "copies of 40 ms against 1.5 s that were computed again"
    other_load = met(found, {0.8: apart, 0.9: same_latency})
    assert other_load == judged | {"latency_recompute_over_proactive_at_least_2.7": True}, "where it is greatest"
    fewer_copies = found | {"incremental+partial": [a_round(lost=10, copies_s=0.02)]}
    assert met(fewer_copies, {0.9: same_latency}) == judged | {"time_won_back_of_what_preemption_cost_at_least_0.98": True}
    with_plenty = found | {"plenty_on": [a_round(ttft_s=0.11)], "plenty_copying": [a_round()], "plenty_off": [a_round()]}
    of_plenty = {name: value for name, value in met(with_plenty, {0.9: same_latency}).items() if name not in judged}
    assert of_plenty == {
        "p99_ttft_plenty_on_over_plenty_off_at_most_1.02": False,
        "p99_tpot_plenty_on_over_plenty_off_at_most_1.02": True,
        "p99_ttft_plenty_copying_over_plenty_off_at_most_1.02": True,
        "p99_tpot_plenty_copying_over_plenty_off_at_most_1.02": True,
    }


@pytest.mark.parametrize(("offline", "won"), [(5000, 0.0), (4250, -0.85), (5750, 0.85), (5882, 0.9996), (6000, 1.1333)])
def test_throughput_is_won_back_of_what_it_would_be_if_computing_again_took_no_time(offline: int, won: float) -> None:
    """1.5 of 10 s go to computing again: without that, 5,000 tokens would be 5,882."""
    found = {"recompute": [a_round(lost=1500)], "incremental+partial": [a_round(offline=offline)]}
    chats = {0.9: {name: [a_round()] for name in ("chat_recompute", "chat_reactive", "chat_proactive")}}
    goal = goals_of(found, chats, ratios_of(found))["throughput_won_back_of_what_preemption_cost_at_least_0.98"]
    assert (goal["measured"], goal["rounds"]) == (pytest.approx(won, abs=1e-3), [pytest.approx(won, abs=1e-3)])
    assert goal["met"] == (won >= 0.98)


def test_nothing_is_won_back_where_nothing_was_preempted() -> None:
    found = {"recompute": [a_round()], "incremental+partial": [a_round(offline=6000)]}
    chats = {0.9: {name: [a_round()] for name in ("chat_recompute", "chat_reactive", "chat_proactive")}}
    judged = goals_of(found, chats, ratios_of(found))
    missed = {name for name, goal in judged.items() if not goal["met"]}
    assert missed >= {
        "recomputed_share_at_most_0.01",
        "throughput_won_back_of_what_preemption_cost_at_least_0.98",
        "time_won_back_of_what_preemption_cost_at_least_0.98",
    }
    assert all(judged[name]["not_judged"] == "no token was computed again without checkpoints" for name in missed if "won_back" in name)


def test_an_engine_that_answered_no_chat_wins_no_latency() -> None:
    silent = a_round()
    silent.seen.latency_s.clear()
    found = {"recompute": [a_round(lost=1500)], "incremental+partial": [a_round()]}
    chats = {0.9: {"chat_recompute": [a_round()], "chat_reactive": [a_round()], "chat_proactive": [silent]}}
    goal = goals_of(found, chats, ratios_of(found))["latency_recompute_over_proactive_at_least_2.7"]
    assert (goal["measured"], goal["met"]) == (None, False)


def test_a_tail_that_no_request_had_meets_no_goal() -> None:
    silent = a_round()
    silent.seen.ttft_s.clear()
    found = {"recompute": [a_round(lost=1500)], "incremental+partial": [a_round()], "plenty_on": [silent], "plenty_off": [a_round()]}
    chats = {0.9: {name: [a_round()] for name in ("chat_recompute", "chat_reactive", "chat_proactive")}}
    assert goals_of(found, chats, ratios_of(found))["p99_ttft_plenty_on_over_plenty_off_at_most_1.02"]["met"] is False


def test_answers_are_compared_between_engines() -> None:
    assert same({})
    other = a_round()
    other.seen.tokens.clear()
    assert not same({"one": [a_round()], "other": [other]}), "no answer ended in both"
    assert same({"one": [a_round()], "other": [a_round()]})
    assert not same({"one": [a_round()], "other": [a_round(answer=6)]})


@pytest.mark.parametrize("given", [{"rounds": 0.0}, {"rounds": 1.5}, {"turns": 2.0}])
def test_a_wrong_number_of_rounds_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--set"):
        checkpoint._rounds(Options(set=given))


@pytest.mark.parametrize("given", [{"rounds": 0.0}, {"load": 0.0}, {"block_ms": -1.0}, {"turns": 2.0}])
def test_a_link_that_cannot_be_is_refused_before_an_engine_starts(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"--set.*{next(iter(given))}"):
        swap_link.run(Options(set=given))
