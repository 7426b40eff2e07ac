"""The order among online requests, by example and by property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harvester.policy.order.mlfq import Mlfq


def queue(levels: int = 4, quantum_s: float = 1.0, starvation_s: float = 100.0) -> Mlfq:
    return Mlfq(levels, quantum_s, starvation_s)


# -- levels -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill_s", "level"), [(0.0, 0), (1.0, 0), (1.1, 1), (2.0, 1), (3.0, 2), (8.0, 3), (50.0, 3)], ids=lambda value: str(value)
)
def test_a_request_joins_the_first_queue_whose_quantum_covers_its_prompt(prefill_s: float, level: int) -> None:
    mlfq = queue()
    mlfq.arrive("a", prefill_s, 0.0)
    assert mlfq.level("a") == level


def test_a_request_sinks_when_it_has_used_its_quantum_and_the_next_one_is_twice_as_long() -> None:
    mlfq = queue()
    mlfq.arrive("a", 0.0, 0.0)
    levels = []
    for step in range(8):
        mlfq.ran("a", 1.0, step + 1.0)
        levels.append(mlfq.level("a"))
    assert levels == [1, 1, 2, 2, 2, 2, 3, 3]


def test_a_request_stays_in_the_last_queue() -> None:
    mlfq = queue(levels=1)
    mlfq.arrive("a", 0.0, 0.0)
    mlfq.ran("a", 50.0, 50.0)
    assert mlfq.level("a") == 0


def test_a_long_next_step_sinks_a_request_past_the_queues_that_do_not_cover_it() -> None:
    mlfq = queue()
    mlfq.arrive("a", 0.0, 0.0)
    mlfq.ran("a", 1.0, 1.0, next_s=3.5)
    assert mlfq.level("a") == 2


def test_a_new_quantum_counts_from_then_on() -> None:
    mlfq = queue()
    mlfq.quantum_s = 0.1
    mlfq.arrive("a", 0.3, 0.0)
    assert mlfq.level("a") == 2


@pytest.mark.parametrize("bad", [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 0.0)], ids=["levels", "quantum", "starvation"])
def test_bounds_that_are_not_positive_are_refused(bad: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Mlfq(*bad)


# -- order --------------------------------------------------------------------------------------------------------------------------


def test_a_short_prompt_overtakes_a_long_one_that_came_before() -> None:
    mlfq = queue()
    mlfq.arrive("long", 5.0, 0.0)
    mlfq.arrive("short", 0.5, 0.0)
    assert list(mlfq.order(0.0)) == ["short", "long"]


def test_equals_are_served_in_the_order_in_which_they_came() -> None:
    mlfq = queue()
    for name in "abc":
        mlfq.arrive(name, 0.0, 0.0)
    assert list(mlfq.order(0.0)) == ["a", "b", "c"]


def test_a_request_that_runs_keeps_its_place_against_one_that_waits_in_the_queue_it_sinks_into() -> None:
    mlfq = queue()
    mlfq.arrive("waits", 2.0, 0.0)
    mlfq.arrive("runs", 0.0, 0.0)
    mlfq.ran("runs", 1.0, 1.0)
    assert mlfq.level("runs") == mlfq.level("waits") == 1
    assert list(mlfq.order(1.0)) == ["runs", "waits"]


def test_an_arrival_at_the_very_end_of_a_step_does_not_count_as_running() -> None:
    mlfq = queue()
    for name in ("ran", "waits"):
        mlfq.arrive(name, 0.0, 0.0)
    mlfq.ran("ran", 0.5, 0.5)
    mlfq.arrive("new", 0.0, 0.5)
    assert list(mlfq.order(0.5)) == ["ran", "waits", "new"]


def test_an_arrival_in_a_higher_queue_goes_before_the_one_that_runs() -> None:
    mlfq = queue()
    mlfq.arrive("runs", 0.0, 0.0)
    mlfq.ran("runs", 1.0, 1.0)
    mlfq.arrive("new", 0.0, 1.0)
    assert list(mlfq.order(1.0)) == ["new", "runs"]


def test_a_finished_request_is_forgotten() -> None:
    mlfq = queue()
    mlfq.arrive("a", 0.0, 0.0)
    mlfq.finish("a")
    assert (list(mlfq.order(0.0)), len(mlfq), "a" in mlfq) == ([], 0, False)
    with pytest.raises(KeyError):
        mlfq.ran("a", 1.0, 1.0)


# -- starvation ---------------------------------------------------------------------------------------------------------------------


def test_a_starved_request_goes_to_the_front_for_one_step_and_back_to_where_it_was() -> None:
    mlfq = queue(starvation_s=10.0)
    mlfq.arrive("long", 2.0, 0.0)
    mlfq.arrive("short", 1.0, 0.0)
    assert list(mlfq.order(19.0)) == ["short", "long"]
    assert mlfq.level("long") == 1
    assert list(mlfq.order(20.0)) == ["short", "long"]
    assert mlfq.level("long") == 0
    mlfq.ran("long", 1.0, 21.0)
    assert mlfq.level("long") == 1


def test_the_time_that_starvation_bought_is_not_held_against_the_request() -> None:
    mlfq = queue(starvation_s=10.0)
    mlfq.arrive("a", 2.0, 0.0)
    mlfq.ran("a", 1.0, 1.0)
    mlfq.order(30.0)
    mlfq.ran("a", 5.0, 35.0)
    assert mlfq.level("a") == 1
    mlfq.ran("a", 1.0, 36.0)  # its second second in this queue
    assert mlfq.level("a") == 2


@pytest.mark.parametrize(("level", "prefill_s"), [(1, 2.0), (2, 4.0), (3, 8.0)], ids=["second", "third", "fourth"])
def test_a_request_may_wait_twice_as_long_in_each_lower_queue(level: int, prefill_s: float) -> None:
    mlfq = queue(starvation_s=10.0)
    mlfq.arrive("a", prefill_s, 0.0)
    mlfq.order(10.0 * 2**level - 0.1)
    assert mlfq.level("a") == level
    mlfq.order(10.0 * 2**level)
    assert mlfq.level("a") == 0


def test_without_growth_every_queue_starves_after_the_same_time() -> None:
    mlfq = Mlfq(4, 1.0, 10.0, starvation_growth=1.0)
    mlfq.arrive("a", 8.0, 0.0)
    mlfq.order(9.9)
    assert mlfq.level("a") == 3
    mlfq.order(10.0)
    assert mlfq.level("a") == 0


def test_nobody_waits_for_ever_behind_arrivals_that_fill_every_step() -> None:
    mlfq = queue(starvation_s=2.0)
    mlfq.arrive("long", 8.0, 0.0)
    served_s: list[int] = []
    for now in range(100):
        if len(mlfq) < 3:
            mlfq.arrive(str(now), 0.0, float(now))
        first = next(mlfq.order(float(now)))
        mlfq.ran(first, 1.0, now + 1.0)
        if first == "long":
            served_s.append(now)
        else:
            mlfq.finish(first)
    assert served_s
    assert max(later - earlier for earlier, later in pairwise([0, *served_s])) <= 2 * 8 + 3


# -- by property --------------------------------------------------------------------------------------------------------------------


class Queues(RuleBasedStateMachine):
    """Any run of arrivals, steps and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.mlfq = Mlfq(5, 0.02, 0.3)
        self.now_s = 0.0
        self.held: set[str] = set()
        self.count = 0

    @rule(prefill_s=st.floats(0.0, 2.0))
    def arrives(self, prefill_s: float) -> None:
        self.count += 1
        self.mlfq.arrive(str(self.count), prefill_s, self.now_s)
        self.held.add(str(self.count))

    @precondition(lambda self: self.held)
    @rule(most=st.integers(1, 5), seconds=st.floats(0.001, 1.0))
    def steps(self, most: int, seconds: float) -> None:
        batch = list(self.mlfq.order(self.now_s))[:most]
        before = {name: self.mlfq.level(name) for name in batch}
        self.now_s += seconds
        for name in batch:
            self.mlfq.ran(name, seconds, self.now_s)
            if before[name] > 0:
                assert self.mlfq.level(name) >= before[name]  # only starvation raises one

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.mlfq.finish(name)
        self.held.remove(name)

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def the_order_holds_everyone_once_by_queue(self) -> None:
        order = list(self.mlfq.order(self.now_s))
        assert sorted(order) == sorted(self.held)
        levels = [self.mlfq.level(name) for name in order]
        assert levels == sorted(levels)
        self.mlfq.check()


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
