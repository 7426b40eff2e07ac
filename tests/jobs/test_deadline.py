"""Deadlines: a job that would be late is raised in two stages within the limits, and let down slowly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config import DeadlineConfig
from jobs.forecast.deadline import DeadlineView, decide, explain
from jobs.hint import EVEN, SchedulingHint


def raised(boost: float, share: float = 0.0) -> SchedulingHint:
    return SchedulingHint(boost=boost, share=share)


LIMITS = DeadlineConfig(max_boost=8.0, share_cap=0.25)
VIEW = DeadlineView(now_s=0.0, deadline_at_s=100.0, high_s=90.0, hint=EVEN, others=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, EVEN),
        ({"high_s": None}, EVEN),
        ({"high_s": 200.0}, raised(2.0)),
        ({"high_s": 200.0, "hint": raised(6.0)}, raised(8.0)),
        ({"high_s": 200.0, "hint": raised(8.0)}, raised(8.0, 0.04)),
        ({"high_s": 200.0, "hint": raised(8.0, 0.2)}, raised(8.0, 0.25)),
        ({"high_s": 200.0, "others": False}, raised(1.0, 0.04)),
        ({"high_s": 1e9}, raised(4.0)),
        ({"high_s": None, "stalled_s": 19.0}, EVEN),
        ({"high_s": None, "stalled_s": 20.0}, raised(4.0)),
        ({"high_s": None, "stalled_s": 300.0, "deadline_at_s": 3600.0}, EVEN),
        ({"high_s": None, "stalled_s": 360.0, "deadline_at_s": 3600.0, "others": False}, raised(1.0, 0.08)),
        ({"high_s": None, "stalled_s": 900.0, "deadline_at_s": 1e6, "hint": raised(8.0, 0.1)}, raised(8.0, 0.25)),
        ({"high_s": 90.0, "stalled_s": 900.0}, EVEN),
        ({"high_s": 90.0, "hint": raised(8.0, 0.1)}, raised(8.0, 0.1)),
        ({"high_s": 50.0, "hint": raised(8.0, 0.1)}, raised(8.0, 0.07)),
        ({"high_s": 50.0, "hint": raised(8.0, 0.02)}, raised(8.0, 0.0)),
        ({"high_s": 50.0, "hint": raised(8.0)}, raised(5.6)),
        ({"high_s": 200.0, "deadline_at_s": -1.0, "hint": raised(2.0)}, raised(2.0)),
    ],
    ids=[
        "in time", "nothing known", "late", "up to the most", "then a share", "up to the cap", "alone: a share at once", "by four at once",
        "stands", "stands for long", "stands, a tenth of the time left", "stands for so long", "up to the cap without progress",
        "has a rate",
        "in time by little: stays", "well in time: less share", "a small share ends", "then less weight", "passed",
    ],
)  # fmt: skip
def test_a_job_is_raised_by_what_it_lacks(changes: dict[str, object], expected: SchedulingHint) -> None:
    found = decide(replace(VIEW, **changes), LIMITS)  # type: ignore[arg-type]
    assert (found.boost, found.share) == (pytest.approx(expected.boost), pytest.approx(expected.share))


@given(
    st.floats(0.0, 1e6),
    st.floats(1.0, 1e6),
    st.floats(1.0, 8.0),
    st.floats(0.0, 0.25),
    st.booleans(),
    st.floats(1.0, 8.0),
    st.floats(0.0, 0.9),
)
def test_a_hint_stays_within_the_limits_and_never_falls_while_late(
    high_s: float, left_s: float, boost: float, share: float, others: bool, most: float, cap: float
) -> None:
    limits = DeadlineConfig(max_boost=most, share_cap=cap)
    now = raised(min(boost, most), min(share, cap))
    found = decide(DeadlineView(5.0, 5.0 + left_s, high_s, now, others), limits)
    assert 1.0 <= found.boost <= most
    assert 0.0 <= found.share <= cap
    if high_s > left_s:
        assert found.boost >= now.boost
        assert found.share >= now.share


def test_a_job_that_is_served_by_its_weight_is_raised_until_it_is_in_time() -> None:
    """Two jobs with work for ever; this one needs three quarters of the rate, and has half of it at first."""
    hint, now_s, left = EVEN, 0.0, 7500.0
    while left > 0 and now_s < 200:
        rate = 100.0 * hint.boost / (hint.boost + 1.0)
        hint = decide(DeadlineView(now_s, 100.0, 1.1 * left / rate, hint, True), LIMITS)
        left, now_s = left - 2.0 * rate, now_s + 2.0
    assert now_s <= 100.0


@pytest.mark.parametrize(
    ("view", "hint", "said"),
    [
        (VIEW, EVEN, None),
        (replace(VIEW, high_s=None), EVEN, None),
        (replace(VIEW, high_s=None), raised(2.0), "has no forecast of its end now; raised: 2 times its weight"),
        (replace(VIEW, high_s=None, stalled_s=150.0), raised(4.0), "has made no progress for 2 min; raised: 4 times its weight"),
        (replace(VIEW, high_s=400.0), raised(2.0), "may end 5 min after its deadline; raised: 2 times its weight"),
        (
            replace(VIEW, high_s=160.0),
            raised(8.0, 0.1),
            "may end 60 s after its deadline; raised: 8 times its weight, 10% of the engine guaranteed",
        ),
        (VIEW, raised(2.5), "is expected to end in time; raised: 2.5 times its weight"),
        (
            replace(VIEW, high_s=9100.0),
            EVEN,
            "may end 2.5 h after its deadline; not raised: deadlines.max_boost and share_cap allow nothing",
        ),
    ],
    ids=["in time", "unknown", "raised and unknown", "no progress", "raised", "both", "raised and in time", "nothing allowed"],
)
def test_it_says_so(view: DeadlineView, hint: SchedulingHint, said: str | None) -> None:
    assert explain(view, hint) == said


@pytest.mark.parametrize("above_slo", [True, False])
def test_a_share_goes_above_the_slo_where_the_deployment_says_so_and_as_long_as_there_is_one(above_slo: bool) -> None:
    limits = DeadlineConfig(above_slo=above_slo)
    found = decide(replace(VIEW, high_s=200.0, hint=raised(8.0)), limits)
    assert (found.share > 0.0, found.above_slo) == (True, above_slo)
    calm = replace(VIEW, high_s=10.0)
    while found.share > 0.0:
        assert found.above_slo is above_slo
        found = decide(replace(calm, hint=found), limits)
    assert found.above_slo is False
