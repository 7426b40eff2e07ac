"""The rate of first tokens, and what it says of the next request."""

from __future__ import annotations

import math

import pytest

from harvester.policy.admission.chat import (
    BACKLOG,
    MAX_AGE_S,
    MAX_LENGTH,
    OVERLOAD_PROMPTS,
    TIGHT_PROMPTS,
    UNPROMISED_S,
    Asked,
    ChatAdmission,
    Crowd,
    FirstTokenRate,
)


def test_a_backlog_that_ended_unseen_does_not_make_the_rate_look_slow() -> None:
    rate = FirstTokenRate()
    rate.look(0, BACKLOG, 0.0)
    rate.look(1, 0, 20.0)  # everybody had hung up long before
    assert rate.wait_s(8, 20.0) is None


def test_the_rate_is_that_of_the_time_with_a_backlog_and_is_forgotten_without_one() -> None:
    rate = FirstTokenRate()
    for second in range(6):
        rate.look(10 * second, BACKLOG, float(second))
    assert rate.wait_s(20, 5.0) == 2.0
    assert (rate.wait_s(20, 6.5) or 0.0) > 2.0, "what has not come yet counts"
    rate.look(60, 0, 6.0)
    rate.look(60, 0, 6.1 + MAX_AGE_S)
    assert rate.wait_s(20, 6.1 + MAX_AGE_S) is None


def test_where_nobody_waits_nobody_is_refused() -> None:
    policy = ChatAdmission(256)
    assert policy.refused_s(Asked(1, 0.001, 9.0), Crowd(0, 0.0), 0.0) is None
    assert policy.refused_s(Asked(1, TIGHT_PROMPTS * 9.0, 9.0), Crowd(1, TIGHT_PROMPTS * 9.0), 0.0) is not None


def busy(tokens_per_s: int) -> ChatAdmission:
    """A policy after 5 s with a backlog, at ``tokens_per_s`` first tokens a second."""
    policy = ChatAdmission(256)
    for second in range(6):
        policy.look(tokens_per_s * second, 2 * BACKLOG, float(second))
    return policy


@pytest.mark.parametrize("slo_s", [0.01, 1.5, math.inf], ids=["hopeless", "tight", "none"])
def test_an_slo_that_no_burst_keeps_bounds_no_burst(slo_s: float) -> None:
    policy, asked = busy(10), Asked(1, slo_s, prompt_s=0.1)
    assert policy.refused_s(asked, Crowd(50, 0.0), 5.0) is None, "half of 10.4 s, as without an SLO"
    assert policy.refused_s(asked, Crowd(53, 0.0), 5.0) is not None


def test_an_slo_of_many_prompts_is_kept_by_refusing() -> None:
    policy, asked = busy(10), Asked(1, TIGHT_PROMPTS * 0.1, prompt_s=0.1)
    assert policy.refused_s(asked, Crowd(6, 0.0), 5.0) is None
    assert policy.refused_s(asked, Crowd(9, 0.0), 5.0) is not None, "half of 1.6 s"


def test_after_a_refusal_the_bound_is_short_until_that_one_could_have_been_answered_too() -> None:
    policy, tight = busy(10), Asked(1, ttft_slo_s=0.01, prompt_s=0.1)
    few, many = Crowd(round(10 * OVERLOAD_PROMPTS * tight.prompt_s), 0.0), Crowd(100, 0.0)
    assert policy.refused_s(tight, few, 5.0) is None
    assert policy.refused_s(tight, many, 5.0) is not None
    assert policy.refused_s(tight, few, 5.0) is not None
    policy.look(60, 2 * BACKLOG, 6.0)
    assert policy.refused_s(tight, few, 6.0) is not None, "it has answered ten, as many as it can in a second"
    policy.look(60, 2 * BACKLOG, 6.6)
    assert policy.refused_s(tight, few, 6.6) is None, "it had time for more than those that were refused"


def test_an_overload_ends_soon_after_the_last_that_was_refused() -> None:
    policy, tight = busy(10), Asked(1, ttft_slo_s=0.01, prompt_s=0.1)
    for _ in range(1000):
        assert policy.refused_s(tight, Crowd(100, 0.0), 5.0) is not None
    policy.look(50, 0, 5.0 + UNPROMISED_S)
    assert policy.refused_s(tight, Crowd(20, 2.0), 5.0 + UNPROMISED_S) is None


def test_a_long_prompt_waits_longer_than_the_queue_only_within_reason() -> None:
    policy, crowd = ChatAdmission(256), Crowd(1, 0.05, slots_free=True)
    waits_s = [policy.wait_s(Asked(1, math.inf, 0.08, length), crowd, 0.0) for length in (0.1, 1.0, 4.0, MAX_LENGTH, 667.0)]
    assert waits_s == pytest.approx([0.08 + times * 0.05 for times in (1.0, 1.0, 4.0, MAX_LENGTH, MAX_LENGTH)])
    assert policy.refused_s(Asked(1, math.inf, 0.08, 667.0), crowd, 0.0) is None


def test_batch_work_pauses_for_the_queue_and_not_for_the_length_of_one_prompt() -> None:
    policy, crowd = ChatAdmission(256), Crowd(3, 0.3, slots_free=True)
    assert policy.yield_s(Asked(1, 4.0, 0.1, length=MAX_LENGTH), crowd, 0.0) == 0.0, "0.4 s, of 2 s"
    assert policy.yield_s(Asked(1, 4.0, 0.1), Crowd(3, 0.9, slots_free=True), 0.0) == pytest.approx(1.0)
    assert policy.yield_s(Asked(1, 4.0, 0.1), Crowd(3, 9.0, slots_free=True), 0.0) == 2.0, "no longer than chat may wait"
    assert policy.yield_s(Asked(1, 4.0, 0.1), Crowd(0, 9.0), 0.0) == 0.0


def test_a_full_engine_of_unknown_speed_refuses() -> None:
    policy = ChatAdmission(256)
    assert policy.refused_s(Asked(1, math.inf, 0.0), Crowd(256, 0.0), 0.0) == 0.0
    policy.look(1, 255, 1.0)
    assert policy.refused_s(Asked(1, math.inf, 0.0), Crowd(255, 0.0), 1.0) is None


def test_a_key_above_its_part_that_is_refused_makes_no_overload_for_others() -> None:
    policy, asked = busy(10), Asked(1, ttft_slo_s=0.01, prompt_s=0.1)
    assert policy.refused_s(asked, Crowd(40, 0.0, open_requests=40, of_key=39, keys=2), 5.0) is not None
    assert policy.refused_s(asked, Crowd(40, 0.0, open_requests=40, of_key=1, keys=2), 5.0) is None
