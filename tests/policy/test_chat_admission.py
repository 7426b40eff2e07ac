"""The rate of first tokens, and what it says of the next request."""

from __future__ import annotations

from harvester.policy.admission.chat import BACKLOG, MAX_AGE_S, Asked, ChatAdmission, Crowd, FirstTokenRate


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
    assert policy.refused_s(Asked(1, 0.001, 9.0), Crowd(1, 9.0), 0.0) is not None
