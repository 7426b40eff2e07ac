"""Deadlines and weights in the ledger: which job is leased or raised, what expires, and from what an end is estimated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jobs.config import DeadlineConfig
from jobs.errors import StateError
from jobs.forecast.lengths import MIN_ROWS, bucket_of, bucket_tokens
from jobs.hint import Demand, SchedulingHint
from jobs.ledger.history import recent_spans
from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange, LeaseProgress, PartStats
from jobs.states import JobState
from jobs.testing import scripted_plan
from tests.fakes.scripted_ledger import NOW_S, enter, opened, work


@pytest.fixture
def ledger() -> Ledger:
    return opened(Path(":memory:"))


def test_leases_go_by_weight(ledger: Ledger) -> None:
    enter(ledger, "light")
    enter(ledger, "heavy", weight=3.0)
    got = Counter(work(ledger, NOW_S) for _ in range(40))
    assert got["heavy"] + got["light"] == 40
    assert abs(got["light"] - 10) <= 1, "what a row takes is known after the first one"


def test_a_job_that_comes_later_has_saved_up_nothing(ledger: Ledger) -> None:
    enter(ledger, "first")
    for _ in range(8):
        work(ledger, NOW_S)
    enter(ledger, "second")
    got = Counter(work(ledger, NOW_S) for _ in range(8))
    assert got == {"first": 4, "second": 4}


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.PAUSED])
def test_a_job_expires_at_its_deadline_and_keeps_its_rows(ledger: Ledger, state: JobState) -> None:
    job_id = enter(ledger, "docs", deadline_at_s=NOW_S + 60)
    if state is not JobState.QUEUED:
        work(ledger, NOW_S)
    if state is JobState.PAUSED:
        ledger.pause(job_id, NOW_S)
    assert ledger.show(job_id).state is state
    ledger.expire(NOW_S + 59)
    assert ledger.show(job_id).state is state
    assert ledger.lease("a", "scripted", NOW_S + 60) is None
    view = ledger.show(job_id)
    assert (view.state, view.ended_at_s) == (JobState.EXPIRED, NOW_S + 60)
    assert view.rows_ok == (0 if state is JobState.QUEUED else 4)
    assert view.message == f"its deadline passed; its rows are kept; go on without one: harvester resume {job_id}"
    ledger.check()


def test_a_running_slice_of_an_expired_job_is_dropped_and_its_rows_are_kept(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", deadline_at_s=NOW_S + 60)
    lease = ledger.lease("a", "scripted", NOW_S)
    assert lease is not None
    progress = LeaseProgress(lease_id=lease.lease_id, rows_done=3)
    ledger.expire(NOW_S + 61)
    assert ledger.heartbeat("a", [progress], NOW_S + 61) == [lease.lease_id]
    assert ledger.is_leased(lease.lease_id)
    ledger.keep(lease.lease_id, PartStats(rows_ok=2, rows_error=1), NOW_S + 62)
    view = ledger.show(job_id)
    assert (view.state, view.rows_ok, view.rows_error, view.rows_running) == (JobState.EXPIRED, 2, 1, 0)
    assert not ledger.is_leased(lease.lease_id)
    ledger.check()
    ledger.resume(job_id, NOW_S + 63)
    again = ledger.lease("b", "scripted", NOW_S + 64)
    assert again is not None
    assert again.slice == lease.slice
    ledger.heartbeat("b", [LeaseProgress(lease_id=again.lease_id, rows_done=4)], NOW_S + 65)
    assert ledger.show(job_id).rows_running == 1, "three of the four are counted as published"
    ledger.commit(again.lease_id, job_id, again.slice.slice_id, PartStats(rows_ok=3, rows_error=1), NOW_S + 66)
    assert (ledger.show(job_id).rows_ok, ledger.show(job_id).rows_error) == (3, 1)
    ledger.check()


def expired_with_a_failed_row(ledger: Ledger, name: str) -> str:
    job_id = enter(ledger, name, deadline_at_s=NOW_S + 60)
    work(ledger, NOW_S, rows=3, rows_error=1)
    ledger.expire(NOW_S + 60)
    assert ledger.show(job_id).state is JobState.EXPIRED
    return job_id


@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_an_expired_job_that_is_to_go_on_does_not_expire_again_and_says_that_it_has_no_deadline(ledger: Ledger, verb: str) -> None:
    job_id = expired_with_a_failed_row(ledger, "docs")
    view = getattr(ledger, verb)(job_id, NOW_S + 70)
    assert (view.state, view.deadline_at_s) == (JobState.QUEUED, None)
    message = f"its deadline had passed, so it goes on without one; give one with: harvester resume {job_id} --deadline 6h"
    assert view.message == message
    ledger.expire(NOW_S + 80)
    assert work(ledger, NOW_S + 81, generation=1 if verb == "retry" else 0) == job_id
    assert ledger.show(job_id).state is JobState.RUNNING
    assert ledger.show(job_id).message is None, "said until it goes on"
    ledger.check()


def test_a_retry_keeps_a_deadline_that_is_still_to_come(ledger: Ledger) -> None:
    job_id = expired_with_a_failed_row(ledger, "docs")
    ledger.adjust(job_id, JobChange(deadline_at_s=NOW_S + 500))
    view = ledger.retry(job_id, NOW_S + 70)
    assert (view.state, view.deadline_at_s, view.message) == (JobState.QUEUED, NOW_S + 500, None)


def test_an_expired_job_resumes_without_a_deadline_or_with_a_new_one(ledger: Ledger) -> None:
    one, two = enter(ledger, "one", deadline_at_s=NOW_S + 60), enter(ledger, "two", deadline_at_s=NOW_S + 60)
    ledger.expire(NOW_S + 60)
    assert ledger.resume(one, NOW_S + 70).deadline_at_s is None
    ledger.adjust(two, JobChange(deadline_at_s=NOW_S + 500))
    assert ledger.resume(two, NOW_S + 70).deadline_at_s == NOW_S + 500
    ledger.expire(NOW_S + 500)
    assert [ledger.show(job).state for job in (one, two)] == [JobState.QUEUED, JobState.EXPIRED]


def test_a_refused_resume_leaves_a_running_job_its_deadline(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", deadline_at_s=NOW_S + 60)
    work(ledger, NOW_S)
    with pytest.raises(StateError, match="docs is running and cannot become queued"):
        ledger.resume(job_id, NOW_S + 60)
    ledger.expire(NOW_S + 60)
    assert ledger.show(job_id).state is JobState.EXPIRED


def test_what_is_shown_now_is_the_active_jobs_the_newest_ended_ones_and_counts_of_all(ledger: Ledger) -> None:
    names = [enter(ledger, name, rows=4) for name in ("a", "b", "c", "d")]
    for name in names[:3]:
        ledger.cancel(name, NOW_S)
    now = ledger.now(2)
    assert now.views == [view for view in ledger.jobs() if view.id != "a"]
    assert (now.states, now.older) == ({("scripted", JobState.CANCELLED): 3, ("scripted", JobState.QUEUED): 1}, 1)
    assert ledger.now(0).views == [ledger.show("d")]
    assert ledger.now(9).views == ledger.jobs()


@pytest.mark.parametrize("deadline_at_s", [None, NOW_S + 500], ids=["none", "later"])
def test_an_expired_job_that_is_asked_for_again_goes_on_by_the_deadline_of_this_time(ledger: Ledger, deadline_at_s: float | None) -> None:
    plan = scripted_plan("docs", 400, 4, created_at_s=NOW_S + 70)
    job_id = expired_with_a_failed_row(ledger, "docs")
    again = plan.model_copy(update={"spec": plan.spec.model_copy(update={"id": "again", "deadline_at_s": deadline_at_s})})
    view, created = ledger.submit(again, new=False)
    assert (view.id, created, view.state, view.deadline_at_s, view.message) == (job_id, False, JobState.QUEUED, deadline_at_s, None)
    ledger.expire(NOW_S + 80)
    assert work(ledger, NOW_S + 81) == job_id
    ledger.check()


def test_the_same_job_asked_for_again_takes_over_its_new_terms(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.sqlite")
    job_id = enter(ledger, "docs", weight=2.0)
    plan = scripted_plan("docs", 400, 4)
    wished = plan.spec.model_copy(update={"deadline_at_s": NOW_S + 9.0})
    view, created = ledger.submit(plan.model_copy(update={"spec": wished}), new=False)
    assert (created, view.weight, view.deadline_at_s) == (False, 2.0, NOW_S + 9.0)
    ledger.close()
    again = opened(tmp_path / "ledger.sqlite")
    assert (again.show(job_id).weight, again.show(job_id).deadline_at_s) == (2.0, NOW_S + 9.0)
    again.close()


def run_for(ledger: Ledger, seconds: int, from_s: float, every_s: int = 15) -> SchedulingHint:
    hint = SchedulingHint()
    for at in range(0, seconds, every_s):
        work(ledger, from_s + at)
        hint = ledger.hints(from_s + at).get("late", hint)
    return hint


def test_a_job_that_will_be_late_is_raised_and_says_so(ledger: Ledger) -> None:
    enter(ledger, "late", rows=4000, deadline_at_s=NOW_S + 600)
    enter(ledger, "other", rows=4000)
    assert run_for(ledger, 300, NOW_S) == SchedulingHint("late", boost=8.0, share=0.25)
    view = ledger.show("late")
    assert (view.boost, view.guaranteed_share) == (8.0, 0.25)
    assert view.standing is not None
    assert "after its deadline; raised: 8 times its weight, 25% of the engine guaranteed" in view.standing
    assert ledger.hints(NOW_S + 300)["other"] == SchedulingHint("other")
    got = Counter(work(ledger, NOW_S + 301) for _ in range(18))
    assert got["late"] == 16


def test_a_model_s_jobs_ask_for_more_while_one_is_late_by_its_deadline(ledger: Ledger) -> None:
    assert ledger.demand("scripted", NOW_S) == Demand()
    late = enter(ledger, "late", rows=4000, deadline_at_s=NOW_S + 600)
    assert ledger.demand("scripted", NOW_S) == Demand(has_work=True)
    run_for(ledger, 300, NOW_S)
    assert ledger.demand("scripted", NOW_S + 300) == Demand(has_work=True, is_late=True)
    assert ledger.demand("another", NOW_S + 300) == Demand()
    ledger.adjust(late, JobChange(deadline_at_s=NOW_S + 900_000))
    assert ledger.demand("scripted", NOW_S + 301) == Demand(has_work=True)
    ledger.pause(late, NOW_S + 302)
    assert ledger.demand("scripted", NOW_S + 303) == Demand()


@pytest.mark.parametrize("paused", [False, True], ids=["queued", "paused"])
def test_a_job_without_any_replica_expires_too(ledger: Ledger, paused: bool) -> None:
    """A model without replicas is looked at by `demand` alone: a job past its deadline must not wake one."""
    late = enter(ledger, "late", rows=4, deadline_at_s=NOW_S + 600)
    if paused:
        ledger.pause(late, NOW_S)
    assert ledger.demand("scripted", NOW_S + 599) == Demand(has_work=not paused)
    assert ledger.demand("scripted", NOW_S + 600) == Demand()
    assert ledger.show(late).state is JobState.EXPIRED


def test_a_rate_seen_for_seconds_raises_nobody_while_there_is_time(ledger: Ledger) -> None:
    enter(ledger, "late", rows=4000, deadline_at_s=NOW_S + 600)
    enter(ledger, "other", rows=4000)
    assert run_for(ledger, 15, NOW_S, every_s=5) == SchedulingHint("late")


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), 1e15])
def test_a_deadline_that_is_no_time_is_refused(at_s: float) -> None:
    with pytest.raises(ValueError, match="deadline_at_s"):
        JobChange(deadline_at_s=at_s)


def test_limits_are_the_configs(ledger: Ledger) -> None:
    ledger = opened(Path(":memory:"), deadlines=DeadlineConfig(max_boost=2.0, share_cap=0.1, above_slo=True))
    enter(ledger, "late", rows=4000, deadline_at_s=NOW_S + 600)
    enter(ledger, "other", rows=4000)
    assert run_for(ledger, 300, NOW_S) == SchedulingHint("late", boost=2.0, share=0.1, above_slo=True)


def test_a_job_in_time_is_not_raised_and_one_that_is_given_more_time_is_let_down(ledger: Ledger) -> None:
    enter(ledger, "late", rows=4000, deadline_at_s=NOW_S + 600)
    run_for(ledger, 100, NOW_S)
    assert ledger.show("late").guaranteed_share > 0.0
    ledger.adjust("late", JobChange(deadline_at_s=NOW_S + 1e7))
    assert run_for(ledger, 60, NOW_S + 100) == SchedulingHint("late")
    assert ledger.show("late").standing is None


def test_the_finish_is_told_with_its_spread(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", rows=400)
    for at in range(20):
        work(ledger, NOW_S + 6 * at)  # 4 rows and 480 tokens in 6 s
    view = ledger.show(job_id)
    assert view.eta_s == pytest.approx(480.0, rel=0.1)
    assert view.eta_s is not None
    assert view.eta_low_s is not None
    assert view.eta_high_s is not None
    assert view.eta_low_s <= view.eta_s <= view.eta_high_s


def test_a_job_that_waits_is_told_from_the_hours_before_and_the_lengths_of_its_task(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.sqlite")
    enter(ledger, "before", rows=80)
    for at in range(20):
        work(ledger, NOW_S + 6 * at, lengths=((7, 12, 4),))
    assert ledger.show("before").state is JobState.COMPLETED
    lines = ledger.table("harvest").to_pylist()
    assert sum(line["tokens"] for line in lines) == 20 * 480
    assert sum(line["rows"] for line in lines) == 80
    (span,) = recent_spans(lines, "scripted", NOW_S + 200)
    assert (span.seconds, span.tokens) == (pytest.approx(114.0), 9600)
    (band,) = ledger.table("lengths").to_pylist()
    assert (band["task"], band["prompt_tokens_from"], band["rows"], band["p90_coverage"]) == ("echo", 64, 80, 1.0)
    ledger.close()
    again = opened(tmp_path / "ledger.sqlite")
    enter(again, "next", rows=240)
    (known,) = again.show("next").response_lengths
    assert (known.rows, known.p50_tokens, known.p50_coverage) == (80, 12, 1.0)
    again.close()


def test_time_without_work_is_not_counted_as_harvest(ledger: Ledger) -> None:
    enter(ledger, "one", rows=8)
    work(ledger, NOW_S)
    work(ledger, NOW_S + 10)
    ledger.expire(NOW_S + 11)
    enter(ledger, "two", rows=8)
    work(ledger, NOW_S + 500)
    work(ledger, NOW_S + 510)
    assert sum(line["busy_s"] for line in ledger.table("harvest").to_pylist()) == pytest.approx(20.0, abs=2.0)


def test_a_hint_says_how_long_the_answers_of_the_task_were_once_twenty_are_known(ledger: Ledger) -> None:
    enter(ledger, "first")
    work(ledger, NOW_S, lengths=((7, bucket_of(100), MIN_ROWS - 1),))
    assert ledger.hints(NOW_S)["first"].answer_tokens is None
    work(ledger, NOW_S, lengths=((9, bucket_of(100), 1),))
    assert ledger.hints(NOW_S)["first"].answer_tokens == bucket_tokens(bucket_of(100))
