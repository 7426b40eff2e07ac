"""Orders of online requests, and who gives a slot to one that goes first: by example."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.online import MIN_QUANTUM_S, STEPS, Fcfs, OnlineRequest, SkipJoin
from harvester.policy.order.turns import left_out, ranked
from harvester.policy.parts import ONLINE_ORDERS, PartsConfig
from harvester.policy.waiting import Waiting, WaitingOnline

RANKS = {name: place for place, name in enumerate("abcdef")}


def waits(blocks: dict[str, int], tokens: int = 1) -> Callable[[str], Waiting | None]:
    """Waiting requests that need so many KV blocks, each with ``tokens``."""
    return WaitingOnline(Waiting(name, tokens, count, math.inf) for name, count in blocks.items()).get


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "free", "out"),
    [
        ("ab", {}, 2, 0, ""),
        ("bc", {"a": 1}, 3, 0, ""),
        ("bc", {"a": 1}, 2, 1, "c"),
        ("bc", {"a": 2}, 2, 1, ""),
        ("cd", {"a": 3, "b": 2}, 2, 5, "cd"),
        ("cd", {"a": 3, "b": 3}, 2, 5, "d"),
        ("cd", {"a": 6, "b": 1}, 2, 5, ""),
        ("ab", {"c": 1}, 2, 9, ""),
        ("abc", {}, 2, 9, "c"),
        ("abx", {}, 9, 9, "x"),
        ("ax", {"b": 1}, 2, 9, "x"),
        ("a", {"x": 1}, 1, 9, ""),
        ("a", {"b": 1}, 0, 9, "a"),
    ],
    ids=[
        "all have a slot",
        "a slot is free",
        "the last gives its slot",
        "no KV for the first: nobody sits out for it",
        "two go first",
        "the second finds no KV left",
        "none is admitted past the first",
        "those that wait go last",
        "more run than there are slots",
        "one that has no turn",
        "one without a turn gives its slot",
        "one without a turn takes none",
        "no slots",
    ],
)
def test_a_slot_goes_to_the_first_in_order_that_finds_kv(running: str, waiting: dict[str, int], slots: int, free: int, out: str) -> None:
    assert left_out(dict.fromkeys(running, 1), waits(waiting), RANKS, slots, free) == set(out)


@given(
    st.sets(st.sampled_from("abcdef")), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 4)), st.integers(0, 6), st.integers(0, 9)
)
def test_nobody_sits_out_for_less_than_a_full_batch(held: set[str], come: dict[str, int], slots: int, free: int) -> None:
    running, waiting = sorted(held), {name: blocks for name, blocks in come.items() if name not in held}
    out = left_out(dict.fromkeys(running, 1), waits(waiting), RANKS, slots, free)
    assert out <= held
    assert len(held - out) <= slots
    # Requests that sit out rank behind all that stay, and as many others are admitted.
    assert all(RANKS[name] > RANKS[stays] for name in out for stays in held - out)
    assert len(held) <= slots or len(out) >= len(held) - slots
    assert not out or len(held - out) + sum(blocks <= free for blocks in waiting.values()) >= slots


@pytest.mark.parametrize(
    ("running", "slots", "tokens", "out"),
    [
        ({"c": 1, "d": 1, "e": 1}, 3, 9, "e"),
        ({"c": 1, "d": 1, "e": 1}, 3, 14, "de"),
        ({"c": 1, "d": 1, "e": 1}, 3, 2, ""),
        ({"c": 99, "d": 1, "e": 1}, 3, 14, ""),
        ({"c": 1, "d": 1, "e": 99}, 3, 9, "e"),
        ({"c": 1, "d": 1}, 3, 14, "d"),
        ({"c": 1, "d": 1, "e": 1, "f": 1}, 3, 2, "f"),
    ],
    ids=[
        "the first prompt takes all tokens",
        "the second gets a part",
        "those that run take all tokens",
        "a prompt that stays takes all",
        "a prompt that leaves gives its tokens",
        "a free slot comes first",
        "more run than there are slots",
    ],
)
def test_nobody_sits_out_for_a_prompt_that_the_step_has_no_token_for(running: dict[str, int], slots: int, tokens: int, out: str) -> None:
    """Of ``a`` and ``b``, each of ten tokens."""
    assert left_out(running, waits({"a": 1, "b": 1}, tokens=10), RANKS, slots, 9, tokens) == set(out)


def test_a_waiting_request_is_charged_what_it_computes_and_not_what_is_cached() -> None:
    running, waiting = {"c": 1, "d": 1, "e": 1}, waits({"a": 1, "b": 1}, tokens=10)
    assert left_out(running, waiting, RANKS, 3, 9, 9) == {"e"}
    assert left_out(running, waiting, RANKS, 3, 9, 9, 0.1) == {"d", "e"}


@pytest.mark.parametrize("name", ONLINE_ORDERS)
def test_a_lower_priority_number_goes_before_all_others(name: str) -> None:
    order = ONLINE_ORDERS[name](PartsConfig())
    for number, priority in enumerate((0, 7, -1, 0, -1, 7)):
        order.arrive(OnlineRequest(f"{priority}-{number}", priority), 0.0)
    whole = [int(one.rsplit("-", 1)[0]) for one in order.order(0.0)]
    assert whole == sorted(whole)
    some = ["7-1", "0-3", "0-0", "-1-4"]
    assert [*order.among(some, 0.0)] == [one for one in order.order(0.0) if one in some]


class Counted(Fcfs):
    """Counts how far the order is walked through."""

    walked = 0

    def order(self, now_s: float) -> Iterator[str]:
        for name in super().order(now_s):
            self.walked += 1
            yield name


def test_as_many_as_a_step_may_admit_are_looked_at_and_those_that_run_keep_their_places() -> None:
    order = Counted()
    for number in range(1000):
        order.arrive(OnlineRequest(f"r{number}"), 0.0)
    waiting = {f"r{number}" for number in range(1000)} - {"r1", "r900", "r800"}
    found = ranked(order, ["r900", "r1", "r800", "stranger"], waiting, 3, 0.0)
    assert found == {"r0": 0, "r1": 1, "r2": 2, "r3": 3, "r800": 4, "r900": 5}
    assert order.walked == 4


def skip_join(skip: bool = True) -> tuple[SkipJoin, Mlfq]:
    mlfq = Mlfq(4, 0.01, 100.0)
    return SkipJoin(mlfq, skip), mlfq


def test_a_long_prompt_joins_the_queue_that_covers_it_and_the_first_without_skipping() -> None:
    for skip, level in ((True, 2), (False, 0)):
        order, mlfq = skip_join(skip)
        order.arrive(OnlineRequest("a", prefill_s=0.04), 0.0)
        assert mlfq.level("a") == level


def test_the_first_quantum_is_the_shortest_of_the_last_steps_and_never_nothing() -> None:
    order, mlfq = skip_join()
    order.ran([], 0.002, 0.0)
    order.ran([], 0.03, 0.0)
    assert mlfq.quantum_s == 0.002
    for _ in range(STEPS - 1):
        order.ran([], 0.03, 0.0)
    assert mlfq.quantum_s == 0.03, "the short step is long ago"
    order.ran([], 0.0, 0.0)
    assert mlfq.quantum_s == MIN_QUANTUM_S


def test_what_ran_sinks_and_what_has_ended_meanwhile_is_passed_over() -> None:
    order, mlfq = skip_join()
    order.arrive(OnlineRequest("a"), 0.0)
    order.arrive(OnlineRequest("b"), 0.0)
    order.ran(["ended", "a"], 0.01, 0.01)
    assert (list(order.order(0.01)), mlfq.level("a"), mlfq.level("b")) == (["b", "a"], 1, 0)
    order.finish("b")
    assert list(order.order(0.01)) == ["a"]


def test_the_turn_of_a_request_in_a_lower_queue_comes_after_those_above() -> None:
    order, _ = skip_join()
    for number in range(3):
        order.arrive(OnlineRequest(f"first-{number}"), 0.0)
    order.arrive(OnlineRequest("long", prefill_s=0.02), 0.0)
    assert order.next_turn_s(["long"], 0.0, 1)["long"] == pytest.approx(0.03)
    assert order.next_turn_s(["long"], 0.0, 3)["long"] == pytest.approx(0.01)
    assert order.next_turn_s(["first-0"], 99.999, 1)["first-0"] == 0.0


@pytest.mark.parametrize("field", ["levels", "quantum_s", "starvation_s"])
def test_a_queue_of_nothing_is_refused(field: str) -> None:
    given_: dict[str, Any] = {"levels": 1, "quantum_s": 0.1, "starvation_s": 0.1}
    assert len(Mlfq(**given_)) == 0
    with pytest.raises(ValueError, match=f"{field}=0.* must be positive"):
        Mlfq(**{**given_, field: 0})


def test_a_request_waits_longer_in_a_lower_queue_before_it_is_promoted() -> None:
    queues = Mlfq(3, 0.01, 1.0)
    queues.arrive("low", 0.04, 0.0)
    queues.arrive("high", 0.0, 3.5)
    assert (queues.level("low"), queues.quantum(2)) == (2, 0.04)
    assert list(queues.order(3.9)) == ["high", "low"]
    assert [queues.enst(["low"], now_s, 1)["low"] for now_s in (3.9, 3.99)] == pytest.approx([0.03, 0.01])
    assert list(queues.order(4.0)) == ["high", "low"]
    assert queues.level("low") == 0, "4 s in queue 2 are too long"
    queues.ran("low", 0.5, 4.5)
    assert queues.level("low") == 2, "one step, and back"


def test_one_that_runs_goes_on_before_its_equals() -> None:
    queues = Mlfq(3, 1.0, 100.0)
    for name in "abc":
        queues.arrive(name, 0.0, 0.0)
    queues.ran("c", 0.1, 0.1)
    assert list(queues.order(0.1)) == ["c", "a", "b"]
    queues.ran("b", 0.1, 0.2)
    assert list(queues.order(0.2)) == ["b", "a", "c"]


def test_a_used_up_quantum_leads_to_the_next_queue_that_covers_the_next_step() -> None:
    queues = Mlfq(4, 0.01, 100.0)
    for name, next_s, level in (("a", 0.0, 1), ("b", 0.04, 2), ("c", 9.0, 3)):
        queues.arrive(name, 0.0, 0.0)
        queues.ran(name, 0.009, 0.1, next_s)
        assert queues.level(name) == 0
        queues.ran(name, 0.001001, 0.2, next_s)
        assert queues.level(name) == level
    queues.ran("c", 9.0, 0.3)
    assert queues.level("c") == 3, "there is none below"
