"""Orders among online requests: who goes first, who starves, and whose KV is taken."""

from __future__ import annotations

import math

import pytest

from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.econo import RANGE_TOKENS, Econo
from harvester.policy.order.online import EarliestDeadline, OnlineOrder, OnlineRequest, ShortestFirst
from harvester.policy.order.turns import give_up
from harvester.policy.parts import ONLINE_ORDERS, PartsConfig
from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting, WaitingOnline
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request, promised
from tests.sim.brains import PLAIN, a_brain, an_engine

CONFIG = PartsConfig(mlfq_levels=6, starvation_s=2.0)


def asked(name: str, answer_tokens: int, due_s: float = 0.0, tpot_s: float = math.inf, prompt_tokens: int = 1) -> OnlineRequest:
    return OnlineRequest(name, 0, prompt_tokens, "", 1000, answer_tokens, 1.0, 1.0, due_s, tpot_s)


def order_of(order: OnlineOrder, *requests: OnlineRequest, now_s: float = 0.0) -> str:
    for request in requests:
        order.arrive(request, 0.0)
    return "".join(order.order(now_s))


# -- who goes first -------------------------------------------------------------------------------------------------------------------


def test_sjf_goes_by_what_is_left_and_not_by_the_whole_answer() -> None:
    order = ShortestFirst()
    assert order_of(order, asked("l", 100), asked("s", 60)) == "sl"
    for _ in range(50):
        order.ran(["l"], 1.0, 1.0)
    assert list(order.order(1.0)) == ["l", "s"]


def test_an_answer_longer_than_predicted_counts_as_near_its_end_again_and_again() -> None:
    order = ShortestFirst()
    order_of(order, asked("l", 3), asked("s", 40))
    for _ in range(500):
        order.ran(["l"], 1.0, 1.0)
        assert list(order.order(1.0)) == ["l", "s"]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ((asked("a", 9, due_s=5.0), asked("b", 9, due_s=4.0)), "ba"),
        ((asked("a", 90, due_s=4.0, tpot_s=0.1), asked("b", 9, due_s=5.0, tpot_s=0.1)), "ba"),
        ((asked("a", 90, due_s=4.0), asked("b", 9, due_s=5.0)), "ab"),
    ],
    ids=["the class that is promised more", "the shorter answer is due sooner", "no gap is promised: the first token"],
)
def test_edf_goes_by_when_the_whole_answer_is_due(requests: tuple[OnlineRequest, ...], expected: str) -> None:
    assert order_of(EarliestDeadline(), *requests) == expected


def test_econo_goes_by_range_of_deadline_then_by_kv_then_by_the_longest_answer() -> None:
    order, wide = Econo(), RANGE_TOKENS
    soon, kept = asked("soon", 1, due_s=0.3), asked("kept", wide, due_s=1.0, prompt_tokens=3 * wide)
    long, short, alike = (asked(name, tokens, due_s=1.9) for name, tokens in (("long", 9 * wide), ("short", wide), ("alike", wide + 1)))
    for request in (short, alike, long, kept, soon):
        order.arrive(request, 0.0)
    assert list(order.order(0.0)) == ["soon", "long", "short", "alike", "kept"]
    order.ran(["kept"], 0.1, 0.1)
    assert list(order.order(0.0)) == ["soon", "kept", "long", "short", "alike"]


# -- who starves ----------------------------------------------------------------------------------------------------------------------

STREAM = 120


def a_second_a_step() -> LatencyModel:
    model = LatencyModel()
    for _ in range(80):
        model.observe(StepLoad.prefill(40), 1.0)
        model.observe(StepLoad.decode(40), 1.0)
    return model


def wait_of(order: str, answer: int, crowd: int, ttft_s: float = 1.0, tpot_s: float = 1.0, stream: int = STREAM) -> tuple[float, float]:
    """One request with an answer of ``answer`` tokens, in a stream of others with ``crowd`` that come as fast as one slot serves them.

    Seconds until its first token, and the longest such wait of the others.
    """
    others = [Request(f"r{i}", float(i * crowd), 1, crowd, expected_tokens=crowd) for i in range(stream)]
    trace = [*others[:3], Request("odd", 1.5, 1, answer, expected_tokens=answer), *others[3:]]
    brain = a_brain(PLAIN, model=a_second_a_step(), order=ONLINE_ORDERS[order](CONFIG))
    ended = Simulation(an_engine(max_seqs=1), brain).run(promised(trace, ttft_s, tpot_s))
    waits = {outcome.request.id: outcome.ttft_s for outcome in ended}
    return waits.pop("odd"), max(waits.values())


WHOLE = STREAM * 4.0  # how long the stream of short ones lasts


def test_under_sjf_a_long_answer_starves_until_the_shorter_ones_are_over() -> None:
    assert wait_of("sjf", 60, 4)[0] >= WHOLE - 8.0


@pytest.mark.parametrize(("order", "most_s"), [("fcfs", 4.0), ("edf", 70.0), ("mlfq", 4.0)])
def test_a_long_answer_among_short_ones_is_served_in_time(order: str, most_s: float) -> None:
    """Under EDF it may be overtaken by those that are due before it: for as long as its own deadline is further away than theirs."""
    assert wait_of(order, 60, 4)[0] <= most_s


def test_under_econo_a_short_answer_starves_behind_long_ones_that_are_late_too() -> None:
    """With deadlines that no one meets all are in one range, where the longest goes first."""
    stream = 20  # of long answers: each is hundreds of steps
    assert wait_of("econo", 4, 2 * RANGE_TOKENS, 0.1, 0.0, stream)[0] >= (stream - 2) * 2 * RANGE_TOKENS
    assert wait_of("edf", 4, 2 * RANGE_TOKENS, 0.1, 0.0, stream)[0] <= 4 * RANGE_TOKENS


# -- whose KV is taken ----------------------------------------------------------------------------------------------------------------


def held(name: str, blocks: int, step: int = 1, offline: bool = False) -> Running:
    return Running(name, offline, 1, blocks, 0, step, 16 * blocks, True)


def short_of_kv(*running: Running, free: int, max_seqs: int = 8) -> EngineView:
    return EngineView(running, WaitingOnline([Waiting("w", 16, 1, 0.0)]), free, 100, max_seqs, 0.0, 16)


RANKS = {"a": 2, "b": 0, "c": 1}


@pytest.mark.parametrize(
    ("free", "lost"), [(3, ()), (2, (0,)), (0, (0,))], ids=["enough", "one block too few", "its own and its growth suffice"]
)
def test_the_last_in_the_order_gives_up_its_kv(free: int, lost: tuple[int, ...]) -> None:
    assert give_up(short_of_kv(held("a", 5), held("b", 1), held("c", 1), free=free), RANKS) == lost


def test_as_many_give_up_as_are_needed_and_never_the_first() -> None:
    assert give_up(short_of_kv(held("a", 1), held("b", 1, 9), held("c", 1), free=0), RANKS) == (0, 2)


def test_offline_work_gives_up_its_kv_before_any_online_request() -> None:
    assert give_up(short_of_kv(held("a", 5), held("b", 1), held("row", 1, offline=True), free=0), RANKS) == ()


def test_who_sits_out_asks_for_no_block() -> None:
    assert give_up(short_of_kv(held("a", 5), held("b", 1), held("c", 1), free=2, max_seqs=2), RANKS) == ()


@pytest.mark.parametrize(("order", "lost"), [("fcfs", "late"), ("sjf", "long"), ("edf", "long"), ("econo", "late")])
def test_where_kv_is_short_the_order_says_who_computes_again(order: str, lost: str) -> None:
    """``late`` came last, with the shorter answer; vLLM would take its KV."""
    trace = [Request("long", 0.0, 60, 60, expected_tokens=60), Request("late", 2.0, 60, 20, expected_tokens=20)]
    brain = a_brain(PLAIN, model=a_second_a_step(), order=ONLINE_ORDERS[order](CONFIG))
    ended = Simulation(an_engine(total_blocks=10, max_seqs=2), brain).run(promised(trace, 500.0, 1.0))
    assert [outcome.request.id for outcome in ended if outcome.preemptions] == [lost]
