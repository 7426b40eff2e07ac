"""How long a step may take by the TPOT promised: each gap, or their mean."""

from __future__ import annotations

import pytest

from harvester.policy.step.gaps import LONGEST, SHORTEST, EachGap, MeanGap
from tests.policy.asked import chat, prompt, row


def test_where_each_gap_counts_nothing_is_remembered() -> None:
    rule = EachGap()
    rule.ran(["a"], 1.0)
    assert rule.allowed_s([chat(0.1)], 5.0) is None


def test_tokens_that_came_early_leave_time_to_the_next_one() -> None:
    rule = MeanGap()
    one = [chat(0.1)._replace(name="a")]
    assert rule.allowed_s(one, 10.0) == pytest.approx(0.1)
    rule.ran(["a"], 10.02)
    assert rule.allowed_s(one, 10.02) == pytest.approx(0.18)


def test_a_gap_is_never_longer_nor_shorter_than_its_bounds() -> None:
    rule = MeanGap()
    one = [chat(0.1)._replace(name="a")]
    rule.allowed_s(one, 10.0)
    for _ in range(50):
        rule.ran(["a"], 10.0)
    assert rule.allowed_s(one, 10.0) == pytest.approx(LONGEST * 0.1)
    assert rule.allowed_s(one, 99.0) == pytest.approx(SHORTEST * 0.1)


def test_the_most_urgent_of_those_that_decode_counts() -> None:
    rule = MeanGap()
    both = [chat(0.1)._replace(name="a"), chat(0.3)._replace(name="b"), prompt(50), row(), chat(float("inf"))._replace(name="c")]
    assert rule.allowed_s(both, 10.0) == pytest.approx(0.1)
    assert rule.allowed_s(both[1:], 10.1) == pytest.approx(0.2)
    assert rule.allowed_s(both[2:], 10.1) is None


def test_who_has_ended_and_comes_again_begins_anew() -> None:
    rule = MeanGap()
    one = [chat(0.1)._replace(name="a")]
    rule.allowed_s(one, 10.0)
    rule.finish("a")
    rule.finish("never seen")
    assert rule.allowed_s(one, 20.0) == pytest.approx(0.1)
