"""The reserve for arrivals: as large as recent bursts, at once larger, slowly smaller."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.model.arrivals import ArrivalRate, BurstReserve


def after(*bursts: tuple[float, int], blocks: int = 3) -> BurstReserve:
    """``bursts``: when each came and of how many requests it was."""
    kept = BurstReserve()
    for at_s, size in bursts:
        for i in range(size):
            kept.arrival(at_s + i * 0.01, blocks)
    return kept


def test_before_the_first_arrival_the_reserve_is_the_given_one() -> None:
    assert BurstReserve(slots=4, blocks=30).reserve(1000.0) == (4, 30)
    assert BurstReserve().reserve(0.0) == (0, 0)


def test_a_burst_is_kept_room_for_at_once() -> None:
    assert after((10.0, 6)).reserve(10.1) == (6, 18)


def test_equal_bursts_come_to_a_reserve_of_that_size() -> None:
    slots, blocks = after(*[(float(t), 5) for t in range(0, 100, 2)]).reserve(99.0)
    assert slots == 5
    assert 15 <= blocks <= 16


def test_bursts_that_vary_come_to_more_than_their_mean() -> None:
    slots, _ = after(*[(float(t), 2 if t % 4 else 10) for t in range(0, 100, 2)]).reserve(99.0)
    assert slots > 8


def test_single_arrivals_far_apart_do_not_add_up() -> None:
    assert after(*[(float(t), 1) for t in range(0, 50, 5)]).reserve(46.0)[0] == 1


@pytest.mark.parametrize(("quiet_s", "slots"), [(1.0, 8), (61.0, 4), (121.0, 2), (601.0, 0)], ids=["none", "1 min", "2 min", "10 min"])
def test_quiet_lets_go_of_the_reserve(quiet_s: float, slots: int) -> None:
    kept = after(*[(float(t), 8) for t in range(0, 100, 2)])
    assert kept.reserve(98.07 + quiet_s)[0] == slots


def test_a_burst_long_ago_counts_little_once_others_come() -> None:
    assert after((0.0, 40), (1000.0, 1), (1002.0, 1), (1004.0, 1)).reserve(1004.1)[0] <= 2


def test_row_request_changes_nothing() -> None:
    kept = after((0.0, 3), (2.0, 5))
    assert kept.reserve(50.0) == kept.reserve(50.0)
    assert kept.reserve(2.1) >= kept.reserve(50.0)


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 50)), min_size=1, max_size=60), st.floats(0.0, 500.0), st.floats(0.0, 500.0))
def test_a_reserve_is_never_negative_and_never_grows_in_quiet(gaps: list[tuple[float, int]], one_s: float, other_s: float) -> None:
    kept, now_s = BurstReserve(), 0.0
    for gap_s, blocks in gaps:
        now_s += gap_s
        kept.arrival(now_s, blocks)
    soon, late = (kept.reserve(now_s + s) for s in sorted((one_s, other_s)))
    assert soon[0] >= late[0] >= 0
    assert soon[1] >= late[1] >= 0


def test_no_arrival_is_expected_before_two_have_come() -> None:
    pace = ArrivalRate()
    assert pace.gap_s(5.0) == math.inf
    pace.arrival(5.0)
    assert pace.gap_s(6.0) == math.inf


def test_the_expected_gap_follows_the_gaps_seen_and_grows_with_the_quiet() -> None:
    pace = ArrivalRate()
    for second in range(40):
        pace.arrival(float(second))
    assert pace.gap_s(39.0) == pytest.approx(1.0)
    for tick in range(60):
        pace.arrival(39.0 + tick / 10)
    assert pace.gap_s(44.9) == pytest.approx(0.1, rel=0.01)
    assert pace.gap_s(144.9) == pytest.approx(100.0)
