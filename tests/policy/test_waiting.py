"""Counts of waiting requests, kept as they come and go."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.waiting import MIN_STALE, Waiting, WaitingOnline, WithMore, WithOtherBlocks

CHANGES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.none() | st.tuples(st.integers(1, 99), st.sampled_from([0.5, 1.0, 2.0, math.inf])))
)


@given(CHANGES)
def test_the_sums_are_those_of_all_that_wait(changes: list[tuple[str, tuple[int, float] | None]]) -> None:
    waiting = WaitingOnline()
    for name, told in changes:
        if told is None:
            waiting.remove(name)
        else:
            waiting.add(Waiting(name, told[0], -(-told[0] // 16), told[1]))
        waiting.check()
    assert all(waiting.get(one.name) == one and one.name in waiting for one in waiting)


def test_what_has_gone_takes_no_memory() -> None:
    waiting = WaitingOnline([Waiting("first", 1, 1, 0.0)])
    for number in range(10 * MIN_STALE):
        waiting.add(Waiting(str(number), 1, 1, 1.0 + number))
        waiting.remove(str(number))
    assert len(waiting._due) <= MIN_STALE + 3
    assert waiting.due_s == 0.0


def test_those_that_lose_their_kv_wait_with_the_others() -> None:
    waiting = WaitingOnline([Waiting("a", 20, 2, 5.0)])
    more = WithMore(waiting, [Waiting("b", 30, 2, 3.0), Waiting("c", 1, 1, math.inf)])
    assert (more.tokens, more.blocks, more.due_s, more.unpromised, len(more)) == (51, 5, 3.0, True, 3)
    assert [one.name for one in more] == ["a", "b", "c"]
    assert (more.get("c"), more.get("x"), "a" in more, "x" in more) == (Waiting("c", 1, 1, math.inf), None, True, False)
    assert len(waiting) == 1


def test_those_that_share_blocks_need_fewer_of_them() -> None:
    waiting = WaitingOnline([Waiting("a", 20, 2, 5.0), Waiting("b", 300, 19, 3.0), Waiting("c", 1, 1, math.inf)])
    fewer = WithOtherBlocks(waiting, {"b": 4, "c": 0})
    assert (fewer.blocks, fewer.tokens, fewer.due_s, fewer.unpromised, len(fewer)) == (6, 321, 3.0, True, 3)
    assert [one.blocks for one in fewer] == [2, 4, 0]
    assert (fewer.get("b"), fewer.get("d")) == (Waiting("b", 300, 4, 3.0), None)
    assert ("a" in fewer, "d" in fewer) == (True, False)
