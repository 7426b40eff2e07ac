"""Which KV blocks are copied, and how fast: by example and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.kv.checkpoint import FIRST_BLOCKS, CopyView, Coverage, Holder, Thresholds, limit_blocks, ramp, to_save, waited_blocks
from tests.policy.asked import room_for

TOTAL = 100


def view(*requests: Holder, free: int, limit: int = 1000, room: int = 1000) -> CopyView:
    return CopyView(requests, free, TOTAL, limit, room_for(room))


def settled(free: int, *requests: Holder) -> Coverage:
    """A coverage after many steps at this pressure."""
    coverage = Coverage(Thresholds())
    for _ in range(200):
        coverage.plan(view(*requests, free=free, limit=0))
    return coverage


def offline(count: int, blocks: int = 4, saved: int = 0) -> list[Holder]:
    return [Holder(f"r{i}", blocks, saved) for i in range(count)]


def test_nothing_is_copied_while_more_than_half_of_the_kv_is_free() -> None:
    assert settled(51).plan(view(*offline(8), free=51)) == {}


@pytest.mark.parametrize(("free", "saved"), [(50, 0), (40, 2), (30, 4), (20, 6), (10, 8), (0, 8)], ids=str)
def test_the_number_of_requests_covered_grows_with_the_pressure(free: int, saved: int) -> None:
    coverage = settled(free)
    coverage._filled = 1000.0  # fast enough for all
    assert list(coverage.plan(view(*offline(8), free=free))) == [f"r{i}" for i in range(saved)]


def test_a_burst_of_one_step_covers_fewer_than_pressure_that_stays() -> None:
    coverage = settled(90)
    coverage._filled = 1000.0
    once = coverage.plan(view(*offline(8), free=10))
    for _ in range(5):
        coverage._filled = 1000.0
        later = coverage.plan(view(*offline(8), free=10))
    assert len(once) < len(later) == 8


def test_a_checkpoint_that_is_begun_is_kept_up_when_the_pressure_falls_a_little() -> None:
    coverage = settled(40)
    coverage._filled = 1000.0
    requests = [*offline(7), Holder("begun", 6, 3)]
    assert coverage.plan(view(*requests, free=40))["begun"] == 3


def test_online_requests_are_covered_only_under_twice_the_pressure_and_only_if_wanted() -> None:
    requests = [Holder("chat", 4, 0, offline=False)]
    for free, thresholds, expected in ((35, Thresholds(), set()), (20, Thresholds(), {"chat"}), (20, Thresholds(online=False), set())):
        coverage = Coverage(thresholds)
        for _ in range(200):
            found = coverage.plan(view(*requests, free=free))
        assert set(found) == expected


def test_chats_are_not_covered_while_offline_work_holds_what_they_would_take() -> None:
    """All KV is in use in each case, and the chat's own share of it decides."""
    found = {}
    for held in (60, 75, 100):
        requests = [Holder("work", TOTAL - held, 0), Holder("chat", held, 0, offline=False)]
        found[held] = set(settled(0, *requests).plan(view(*requests, free=0)))
    assert found == {60: {"work"}, 75: {"work", "chat"}, 100: {"chat"}}


def test_the_speed_is_what_fills_up_and_enough_of_the_backlog_to_be_done_when_the_free_blocks_are_gone() -> None:
    coverage = Coverage(Thresholds(start=1.0, full=0.9))
    blocks, saved, free, most = 0, 0, 80, 0
    while free > 0:
        blocks, free = blocks + 2, free - 2
        copied = coverage.plan(view(Holder("a", blocks, saved), free=free))
        saved += copied.get("a", 0)
        most = max(most, copied.get("a", 0))
    assert blocks - saved <= 4
    assert most <= 8


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=12),
    st.integers(0, TOTAL),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_no_plan_is_past_a_limit_or_copies_what_is_covered(requests: list[tuple[int, int, bool]], free: int, limit: int, room: int) -> None:
    kept = [Holder(str(i), blocks, min(blocks, saved), kind) for i, (blocks, saved, kind) in enumerate(requests)]
    coverage = settled(free, *kept)
    grants = coverage.plan(view(*kept, free=free, limit=limit, room=room))
    assert sum(grants.values()) <= min(limit, room)
    assert all(0 < grants[one.name] <= one.blocks - one.saved for one in kept if one.name in grants)


@given(st.floats(0, 1), st.floats(0, 1))
def test_less_free_kv_never_covers_fewer(one: float, other: float) -> None:
    assert ramp(min(one, other), 0.5, 0.1) >= ramp(max(one, other), 0.5, 0.1)


@given(st.floats(1e-4, 10), st.floats(-1, 10), st.floats(1e-6, 1))
def test_copies_beside_online_work_stay_within_the_slack_and_a_fiftieth_of_the_step(step_s: float, slack_s: float, block_s: float) -> None:
    blocks = limit_blocks(step_s, slack_s, block_s, online=True)
    assert blocks >= 0
    assert blocks == 0 or blocks * block_s <= min(slack_s, 0.02 * step_s) * 1.000001


@given(st.floats(1e-4, 10), st.floats(-1, 10), st.floats(1e-6, 1), st.floats(1e-3, 1), st.booleans())
def test_copies_that_a_step_hardly_feels_may_be_more_up_to_half_of_its_time(
    step_s: float, slack_s: float, block_s: float, cost: float, online: bool
) -> None:
    least = 0 if online else 1
    blocks = limit_blocks(step_s, slack_s, block_s, online, cost)
    added_s = min(slack_s, 0.02 * step_s) if online else 0.25 * step_s
    assert blocks >= limit_blocks(step_s, slack_s, block_s, online)
    assert blocks <= least or blocks * block_s <= min(0.5 * step_s, added_s / cost) * 1.000001


def test_a_copy_engine_is_given_half_of_a_step_that_holds_online_work() -> None:
    assert limit_blocks(0.02, 1.0, 1e-4, online=True, cost=0.04) == 100
    assert limit_blocks(0.02, 1.0, 1e-4, online=True) == 4


@given(st.floats(0, 10), st.floats(1e-6, 1))
def test_copies_beside_offline_work_never_stand_still(step_s: float, block_s: float) -> None:
    assert limit_blocks(step_s, 0.0, block_s, online=False) >= 1


@pytest.mark.parametrize(
    ("blocks", "saved", "tail", "limit", "expected"),
    [(5, 5, 3, 4, (0, True)), (5, 3, 3, 4, (2, True)), (5, 3, 0, 4, (2, False)), (5, 1, 3, 4, (4, False)), (5, 0, 3, 4, (4, False)),
     (5, 5, 3, 0, (0, False))],
    ids=["the tail alone", "two and the tail", "no tail", "the limit leaves no room for the tail", "extreme", "no time at all"],
)  # fmt: skip
def test_a_victim_saves_its_last_blocks_where_they_are_few(
    blocks: int, saved: int, tail: int, limit: int, expected: tuple[int, bool]
) -> None:
    assert to_save(blocks, saved, tail, limit) == expected


@pytest.mark.parametrize(("block_s", "blocks"), [(None, 4), (1e-3, 10), (1.0, 4)], ids=["not measured", "fast", "slow"])
def test_a_step_waits_for_copies_a_fiftieth_of_the_first_tokens_time(block_s: float | None, blocks: int) -> None:
    assert waited_blocks(0.5, block_s) == blocks


def test_thresholds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError, match=r"full=0\.6"):
        Thresholds(start=0.5, full=0.6)


@pytest.mark.parametrize(("start", "full"), [(0.5, 0.5), (1.1, 0.1), (0.5, -0.1)], ids=["equal", "more than all", "less than none"])
def test_thresholds_are_shares_of_the_kv_with_room_between_them(start: float, full: float) -> None:
    assert Thresholds(1.0, 0.0).start == 1.0
    with pytest.raises(ValueError, match=f"full={full} must be at least 0 and below start={start}, and that at most 1"):
        Thresholds(start, full)


def test_the_share_that_is_covered_rises_in_a_line_from_nothing_to_all() -> None:
    assert [ramp(free, 0.5, 0.1) for free in (0.9, 0.5, 0.3, 0.1, 0.0)] == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])


@pytest.mark.parametrize("block_s", [None, 0.0], ids=["not measured", "nothing"])
def test_an_engine_that_has_not_measured_a_copy_begins_with_a_few_where_there_is_time(block_s: float | None) -> None:
    found = {(slack_s, online): limit_blocks(0.1, slack_s, block_s, online) for slack_s in (0.1, 0.0) for online in (True, False)}
    assert found == {(0.1, True): FIRST_BLOCKS, (0.0, True): 0, (0.1, False): FIRST_BLOCKS, (0.0, False): FIRST_BLOCKS}


def test_what_is_copied_is_what_fills_up_and_no_more_while_there_is_time() -> None:
    """A request of 100 blocks, 60 of them saved, grows by 2 a step: the average is at 2 and the backlog at 40."""
    coverage = Coverage(Thresholds(start=1.0, full=0.9))
    for blocks in range(2, 102, 2):
        coverage.plan(CopyView([Holder("a", blocks, min(blocks, 60))], 500, 1000, 1000, room_for(1000)))
    assert coverage.plan(CopyView([Holder("a", 102, 60)], 500, 1000, 1000, room_for(1000))) == {"a": 3}
    assert coverage.plan(CopyView([Holder("a", 104, 60)], 44, 1000, 1000, room_for(1000))) == {"a": 4}
    assert coverage.plan(CopyView([Holder("a", 106, 106)], 44, 1000, 1000, room_for(1000))) == {}
