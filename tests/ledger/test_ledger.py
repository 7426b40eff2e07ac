"""The ledger: each transition of a job, who gets which lease, what a death costs, and how the counts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harvester.errors import NotFoundError, ReopenError, StateError, StorageError
from jobs.ledger.leasing import REFUSED_S
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace
from jobs.spec import JobChange, JobView, Lease, LeaseProgress, PartStats
from jobs.states import JobState
from jobs.testing import ManualClock, scripted_plan
from tests.fakes.scripted_ledger import FullDisk, spec_of

LEASE_S = 10.0
MODEL = "scripted"


class Desk:
    """A ledger with its clock, and the few calls that most tests make."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder = folder
        self.place = place
        self.clock = ManualClock()
        self.ledger = self._open(new_server=True)

    def _open(self, *, new_server: bool) -> Ledger:
        return Ledger(self.place, self.folder / "jobs", lease_s=LEASE_S, now_s=self.clock(), new_server=new_server)

    def reopen(self, *, new_server: bool) -> None:
        self.ledger.close()
        self.ledger = self._open(new_server=new_server)

    def submit(self, job_id: str, rows: int = 10, *, new: bool = False, key: str | None = None, model: str = MODEL) -> JobView:
        self.clock.advance(1.0)
        plan = scripted_plan(job_id, rows, key=key, model=model, created_at_s=self.clock())
        return self.ledger.submit(plan, new=new)[0]

    def lease(self, holder: str = "a") -> Lease | None:
        return self.ledger.lease(holder, MODEL, self.clock())

    def leased(self, holder: str = "a") -> Lease:
        lease = self.lease(holder)
        assert lease is not None
        return lease

    def commit(self, lease: Lease, *, errors: int = 0, **counts: Any) -> bool:
        rows = lease.slice.row_count
        stats = PartStats(generation=lease.generation, rows_ok=rows - errors, rows_error=errors, **counts)
        done = self.ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, self.clock())
        self.ledger.check()
        return done

    def beat(self, lease: Lease, holder: str = "a", rows: int = 0, tokens: int = 0) -> list[str]:
        progress = LeaseProgress(lease_id=lease.lease_id, rows_done=rows, tokens_done=tokens)
        return self.ledger.heartbeat(holder, [progress], self.clock())

    def finish(self, *, errors: int = 0) -> None:
        while lease := self.lease():
            self.commit(lease, errors=errors)

    def state(self, job_id: str = "docs-1") -> JobState:
        return self.ledger.show(job_id).state


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """In memory, which no test can open again."""
    desk = Desk(tmp_path, Path(":memory:"))
    yield desk
    desk.ledger.check()
    desk.ledger.close()


@pytest.fixture(params=["sqlite", "postgres"])
def kept_desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """Where it can be opened again."""
    of_database = request.param == "postgres"
    place = PostgresPlace(request.getfixturevalue("database").new(), "desk") if of_database else tmp_path / "ledger.sqlite"
    desk = Desk(tmp_path, place)
    yield desk
    desk.ledger.check()
    desk.ledger.close()


# -- submitting ---------------------------------------------------------------------------------------------------------------------


def test_a_new_job_is_queued_with_all_its_rows_to_do(desk: Desk) -> None:
    view = desk.submit("docs-1", 10)
    assert (view.state, view.rows_total, view.rows_ok, view.rows_error) == (JobState.QUEUED, 10, 0, 0)
    assert view.results == str(desk.folder / "jobs" / "docs-1" / "results")


def test_the_same_key_gives_the_job_that_is_there(desk: Desk) -> None:
    desk.submit("docs-1", key="k")
    view, created = desk.ledger.submit(scripted_plan("docs-2", key="k"), new=False)
    assert (view.id, created) == ("docs-1", False)
    assert [job.id for job in desk.ledger.jobs()] == ["docs-1"]


def test_a_completed_job_counts_as_the_same(desk: Desk) -> None:
    desk.submit("docs-1", key="k")
    desk.finish()
    view, created = desk.ledger.submit(scripted_plan("docs-2", key="k"), new=False)
    assert (view.id, view.state, created) == ("docs-1", JobState.COMPLETED, False)


def test_the_same_key_makes_a_second_job_when_a_new_one_is_asked_for(desk: Desk) -> None:
    desk.submit("docs-1", key="k")
    assert desk.submit("docs-2", key="k", new=True).id == "docs-2"
    assert len(desk.ledger.jobs()) == 2


def _cancelled(desk: Desk) -> None:
    desk.ledger.cancel("docs-1", desk.clock())


def _cancelling(desk: Desk) -> None:
    desk.leased()
    assert desk.ledger.cancel("docs-1", desk.clock()).state is JobState.CANCELLING


def _failed(desk: Desk) -> None:
    desk.ledger.fail("docs-1", "the source is gone", desk.clock())


def refused(desk: Desk, holder: str) -> JobView:
    lease = desk.leased(holder)
    desk.ledger.refuse(lease.lease_id, "docs.parquet does not exist", desk.clock())
    desk.ledger.release(lease.lease_id, desk.clock())
    desk.ledger.check()
    return desk.ledger.show("docs-1")


def test_a_job_that_one_replica_refuses_is_leased_to_the_others(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.leased("b")
    view = refused(desk, "a")
    assert view.state is JobState.RUNNING
    assert view.message == "a cannot read the source, others go on: docs.parquet does not exist"
    assert desk.lease("a") is None
    desk.submit("other-1")
    assert desk.leased("a").job.id == "other-1"
    assert desk.commit(desk.leased("b"))
    assert desk.ledger.show("docs-1").message is None


def test_a_replica_with_a_late_slice_gets_other_jobs_until_it_says_that_it_is_late_no_more(desk: Desk) -> None:
    desk.submit("docs-1")
    late = LeaseProgress(lease_id=desk.leased("a").lease_id, is_late=True)
    assert desk.ledger.heartbeat("a", [late], desk.clock()) == []
    desk.submit("other-1", 1)
    assert desk.leased("a").job.id == "other-1"
    assert desk.lease("a") is None
    assert desk.leased("b").job.id == "docs-1"
    desk.ledger.heartbeat("a", [], desk.clock())
    assert desk.leased("a").job.id == "docs-1"


def test_a_replica_whose_leases_expired_has_no_late_slice(desk: Desk) -> None:
    desk.submit("docs-1")
    late = LeaseProgress(lease_id=desk.leased("a").lease_id, is_late=True)
    desk.ledger.heartbeat("a", [late], desk.clock())
    desk.clock.advance(LEASE_S)
    assert desk.leased("a").job.id == "docs-1"


def test_a_replica_that_refused_a_job_is_asked_for_nothing_of_it_and_given_it_again_in_a_while(desk: Desk) -> None:
    desk.submit("docs-1", 1)
    held = desk.leased("b")
    desk.ledger.release(held.lease_id, desk.clock())
    refused(desk, "a")
    held = desk.leased("b")
    desk.beat(held, "b")
    assert desk.lease("a") is None
    assert desk.ledger.wanted("b") == []
    desk.ledger.release(held.lease_id, desk.clock())
    desk.clock.advance(REFUSED_S)
    assert desk.lease("a") is not None


def test_living_replicas_are_those_of_the_model_that_were_heard_of_within_a_leases_time(desk: Desk) -> None:
    desk.submit("docs-1", 1)
    lease = desk.leased("a")
    desk.lease("b")
    desk.ledger.lease("c", "another", desk.clock())
    assert (desk.ledger.living(lease.job.model, now_s=desk.clock()), desk.ledger.living("another", now_s=desk.clock())) == (
        2,
        1,
    )
    desk.clock.advance(LEASE_S / 2)
    desk.beat(lease, "a")
    desk.clock.advance(LEASE_S / 2)
    assert (desk.ledger.living(lease.job.model, now_s=desk.clock()), desk.ledger.living("another", now_s=desk.clock())) == (
        1,
        0,
    )


def test_a_replica_that_asks_for_the_living_counts_itself_unless_the_ledger_knows_none(desk: Desk) -> None:
    desk.submit("docs-1", 1)
    model = desk.leased("a").job.model
    assert [desk.ledger.living(model, asker, now_s=desk.clock()) for asker in (None, "a", "new")] == [1, 1, 2]
    assert desk.ledger.living(model, None, now_s=desk.clock()) == 1, "to ask is not to be there"
    assert desk.ledger.living("another", "new", now_s=desk.clock()) == 0


def test_a_replica_of_an_earlier_version_asks_in_its_own_words(desk: Desk) -> None:
    desk.submit("docs-1", 1)
    lease = desk.leased("a")
    assert desk.ledger.living(lease.job.model, now_s=desk.clock()) == 1
    assert (desk.ledger.holds(lease.lease_id), desk.ledger.held("docs-1")) == (True, 1)


@pytest.mark.parametrize(("busy_s", "state"), [(LEASE_S, JobState.RUNNING), (0.0, JobState.FAILED)], ids=["waits", "is gone"])
def test_a_replica_that_is_not_heard_of_while_the_ledger_is_busy(desk: Desk, busy_s: float, state: JobState) -> None:
    desk.submit("docs-1")
    desk.leased("b")
    lease = desk.leased("a")
    desk.clock.advance(LEASE_S)
    desk.ledger.was_busy(busy_s)
    desk.beat(lease, "a")
    desk.ledger.refuse(lease.lease_id, "gone", desk.clock())
    assert desk.ledger.show("docs-1").state is state


def test_a_replica_that_was_thought_gone_counts_again_once_it_renews_a_lease(desk: Desk) -> None:
    desk.submit("docs-1")
    held = desk.leased("b")
    desk.submit("other-1")
    late = desk.leased("c")
    desk.clock.advance(LEASE_S)
    desk.ledger.refuse(late.lease_id, "gone", desk.clock())
    assert desk.state("other-1") is JobState.FAILED, "nobody was heard of for a term"
    assert desk.beat(held, "b") == []
    assert refused(desk, "a").state is JobState.RUNNING


def test_a_job_that_each_living_replica_refuses_fails_with_the_last_ones_cause(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.ledger.lease("gone", MODEL, desk.clock())
    desk.clock.advance(LEASE_S)
    desk.ledger.lease("elsewhere", "another-model", desk.clock())
    held = desk.leased("b")
    assert refused(desk, "a").state is JobState.RUNNING
    desk.ledger.release(held.lease_id, desk.clock())
    view = refused(desk, "b")
    assert (view.state, view.message) == (JobState.FAILED, "docs.parquet does not exist")
    desk.ledger.resume("docs-1", desk.clock())
    assert desk.lease("a") is not None, "who resumes it has repaired something"


@pytest.mark.parametrize("end", [_cancelled, _cancelling, _failed], ids=["cancelled", "cancelling", "failed"])
def test_a_job_that_will_not_give_results_does_not_count_as_the_same(desk: Desk, end: Callable[[Desk], None]) -> None:
    desk.submit("docs-1", key="k")
    end(desk)
    assert desk.submit("docs-2", key="k").id == "docs-2"


def test_an_id_that_is_taken_is_refused(desk: Desk) -> None:
    desk.submit("docs-1", key="k")
    with pytest.raises(StateError, match="docs-1 is taken"):
        desk.submit("docs-1", key="other")


def test_jobs_are_listed_newest_first_and_latest_names_the_newest(desk: Desk) -> None:
    for name in ("docs-1", "docs-2", "docs-3"):
        desk.submit(name)
    assert [job.id for job in desk.ledger.jobs()] == ["docs-3", "docs-2", "docs-1"]
    assert desk.ledger.show("latest").id == "docs-3"


def test_an_unknown_id_names_the_newest_jobs(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="unknown job 'docs-9'; there are none yet"):
        desk.ledger.show("docs-9")
    desk.submit("docs-1")
    desk.submit("docs-2")
    with pytest.raises(NotFoundError, match="unknown job 'docs-9'; the newest are: docs-2, docs-1"):
        desk.ledger.show("docs-9")


def test_latest_of_an_empty_ledger_is_an_unknown_job(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="there are none yet"):
        desk.ledger.show("latest")


# -- states -------------------------------------------------------------------------------------------------------------------------


def test_the_first_lease_makes_a_job_run_and_the_last_commit_completes_it(desk: Desk) -> None:
    desk.submit("docs-1", 10)
    first = desk.leased()
    assert desk.state() is JobState.RUNNING
    started_at_s = desk.clock()
    desk.clock.advance(2.0)
    desk.commit(first)
    desk.finish()
    view = desk.ledger.show("docs-1")
    assert (view.state, view.rows_ok, view.eta_s) == (JobState.COMPLETED, 10, 0.0)
    assert (view.started_at_s, view.ended_at_s) == (started_at_s, desk.clock())


def test_a_queued_job_is_cancelled_at_once(desk: Desk) -> None:
    desk.submit("docs-1")
    assert desk.ledger.cancel("docs-1", desk.clock()).state is JobState.CANCELLED
    assert desk.lease() is None


def test_a_job_with_leases_is_cancelling_until_the_last_one_is_back(desk: Desk) -> None:
    desk.submit("docs-1")
    one, two = desk.leased("a"), desk.leased("b")
    assert desk.ledger.cancel("docs-1", desk.clock()).state is JobState.CANCELLING
    assert desk.ledger.cancel("docs-1", desk.clock()).state is JobState.CANCELLING
    assert desk.lease("c") is None
    assert desk.beat(one, "a") == [one.lease_id]
    desk.ledger.release(one.lease_id, desk.clock())
    assert desk.state() is JobState.CANCELLING
    desk.commit(two)
    view = desk.ledger.show("docs-1")
    assert (view.state, view.rows_ok) == (JobState.CANCELLED, two.slice.row_count)


def test_a_cancelling_job_is_cancelled_when_its_dead_replicas_lease_expires(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.leased()
    desk.ledger.cancel("docs-1", desk.clock())
    desk.clock.advance(LEASE_S)
    assert desk.ledger.expire(desk.clock()) == 1
    assert desk.state() is JobState.CANCELLED


def test_a_paused_job_gets_no_leases_and_has_its_replicas_drop_theirs(desk: Desk) -> None:
    desk.submit("docs-1")
    lease = desk.leased()
    assert desk.ledger.pause("docs-1", desk.clock()).state is JobState.PAUSED
    assert desk.lease("b") is None
    assert desk.beat(lease) == [lease.lease_id]
    assert desk.ledger.resume("docs-1", desk.clock()).state is JobState.QUEUED
    assert desk.leased("b").slice.slice_id != lease.slice.slice_id


def test_what_is_committed_after_a_pause_counts_and_may_complete_the_job(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lease = desk.leased()
    desk.ledger.pause("docs-1", desk.clock())
    assert desk.commit(lease)
    assert desk.state() is JobState.COMPLETED


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_the_same_change_twice_is_no_error(desk: Desk, verb: str) -> None:
    desk.submit("docs-1")
    first = getattr(desk.ledger, verb)("docs-1", desk.clock())
    assert getattr(desk.ledger, verb)("docs-1", desk.clock()) == first


@pytest.mark.parametrize("end", [_cancelled, _failed], ids=["cancelled", "failed"])
def test_resume_takes_up_what_is_left(desk: Desk, end: Callable[[Desk], None]) -> None:
    desk.submit("docs-1", 10)
    desk.commit(desk.leased())
    end(desk)
    view = desk.ledger.resume("docs-1", desk.clock())
    assert (view.state, view.rows_ok, view.message, view.ended_at_s) == (JobState.QUEUED, 4, None, None)
    desk.finish()
    assert (desk.state(), desk.ledger.show("docs-1").rows_ok) == (JobState.COMPLETED, 10)


def test_resume_of_a_job_whose_last_slice_was_committed_after_it_failed_completes_it(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lease = desk.leased()
    desk.ledger.fail("docs-1", "the source is gone", desk.clock())
    desk.commit(lease)
    assert desk.state() is JobState.FAILED
    assert desk.ledger.resume("docs-1", desk.clock()).state is JobState.COMPLETED


def test_a_failed_job_says_why_and_keeps_its_first_reason(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.leased()
    desk.ledger.fail("docs-1", "the source is gone", desk.clock())
    desk.ledger.fail("docs-1", "another reason", desk.clock())
    view = desk.ledger.show("docs-1")
    assert (view.state, view.message) == (JobState.FAILED, "the source is gone")
    assert desk.lease() is None


def test_resume_of_a_completed_job_points_at_retry(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.finish()
    with pytest.raises(StateError, match="harvester retry"):
        desk.ledger.resume("docs-1", desk.clock())


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_a_completed_job_cannot_be_changed(desk: Desk, verb: str) -> None:
    desk.submit("docs-1")
    desk.finish()
    with pytest.raises(StateError, match="docs-1 is completed and cannot become"):
        getattr(desk.ledger, verb)("docs-1", desk.clock())


def fail_rows(desk: Desk, slices: int) -> None:
    for _ in range(slices):
        lease = desk.leased()
        desk.commit(lease, errors=lease.slice.row_count)


def test_a_refused_resume_does_not_restart_the_judgement_of_a_running_job(desk: Desk) -> None:
    desk.submit("docs-1", 400)
    desk.ledger.adjust("docs-1", JobChange(max_error_rate=0.5))
    fail_rows(desk, 15)
    with pytest.raises(StateError, match="docs-1 is running and cannot become queued"):
        desk.ledger.resume("docs-1", desk.clock())
    fail_rows(desk, 10)
    assert desk.state() is JobState.FAILED


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_stopped_job_that_goes_on_is_judged_by_the_rows_from_then_on(desk: Desk, verb: str) -> None:
    desk.submit("docs-1", 400)
    desk.ledger.adjust("docs-1", JobChange(max_error_rate=0.5))
    fail_rows(desk, 25)
    assert desk.state() is JobState.FAILED
    getattr(desk.ledger, verb)("docs-1", desk.clock())
    desk.beat(desk.leased())
    assert desk.state() is JobState.RUNNING


def test_rows_that_are_retried_count_as_new_once_they_are_committed(desk: Desk) -> None:
    desk.submit("docs-1", 400)
    desk.ledger.adjust("docs-1", JobChange(max_error_rate=1.0))
    fail_rows(desk, 100)
    assert desk.state() is JobState.COMPLETED
    desk.ledger.adjust("docs-1", JobChange(max_error_rate=0.1))
    desk.ledger.retry("docs-1", desk.clock())
    fail_rows(desk, 24)
    assert desk.state() is JobState.RUNNING
    fail_rows(desk, 1)
    assert desk.state() is JobState.FAILED
    message = desk.ledger.show("docs-1").message
    assert message is not None
    assert message.startswith("stopped early: all 100 rows so far failed, which is above --max-error-rate 0.1")
    desk.ledger.resume("docs-1", desk.clock())
    fail_rows(desk, 24)
    assert desk.state() is JobState.RUNNING
    fail_rows(desk, 1)
    assert desk.state() is JobState.FAILED


def test_of_a_retried_slice_only_the_rows_that_had_failed_are_judged(desk: Desk) -> None:
    desk.submit("docs-1", 800)
    desk.finish(errors=2)
    desk.ledger.adjust("docs-1", JobChange(max_error_rate=0.1))
    desk.ledger.retry("docs-1", desk.clock())
    for _ in range(49):
        desk.commit(desk.leased(), errors=1)
    assert desk.state() is JobState.RUNNING
    desk.commit(desk.leased(), errors=1)
    assert desk.state() is JobState.FAILED
    assert "50 of 100 rows so far failed" in str(desk.ledger.show("docs-1").message)


def test_rows_that_failed_in_a_part_kept_since_the_retry_were_not_judged_before(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    desk.finish(errors=4)
    desk.ledger.retry("docs-1", desk.clock())
    lease = desk.leased()
    desk.commit(lease)
    desk.ledger.reopen_slice("docs-1", lease.slice.slice_id, desk.clock())
    desk.ledger.keep(desk.leased().lease_id, PartStats(generation=1, rows_ok=1, rows_error=2), desk.clock())
    desk.commit(desk.leased(), errors=1)
    desk.ledger.check()
    assert (desk.ledger.show("docs-1").rows_ok, desk.ledger.show("docs-1").rows_error) == (3, 1)


def test_what_a_job_says_of_its_wait_is_taken_back_by_the_next_commit(desk: Desk) -> None:
    desk.submit("docs-1", 10)
    lease = desk.leased()
    desk.ledger.say("docs-1", "the disk is full")
    desk.ledger.release(lease.lease_id, desk.clock())
    again = desk.leased()
    assert desk.ledger.show("docs-1").message == "the disk is full"
    desk.commit(again)
    assert desk.ledger.show("docs-1").message is None


# -- retry --------------------------------------------------------------------------------------------------------------------------


def test_retry_leases_only_the_slices_with_failed_rows_as_a_new_generation(desk: Desk) -> None:
    desk.submit("docs-1", 12)
    for errors in (0, 2, 0):
        desk.commit(desk.leased(), errors=errors)
    assert desk.ledger.retry("docs-1", desk.clock()).state is JobState.QUEUED
    lease = desk.leased()
    assert (lease.slice.slice_id, lease.generation, lease.attempt) == (1, 1, 1)
    assert desk.lease() is None
    desk.commit(lease, errors=1)
    view = desk.ledger.show("docs-1")
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 11, 1)


def test_retry_again_is_one_generation_further(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    for generation in range(3):
        lease = desk.leased()
        assert lease.generation == generation
        desk.commit(lease, errors=1)
        desk.ledger.retry("docs-1", desk.clock())


def test_retry_of_a_cancelled_job_also_takes_up_what_was_left(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    desk.commit(desk.leased(), errors=1)
    desk.ledger.cancel("docs-1", desk.clock())
    desk.ledger.retry("docs-1", desk.clock())
    assert sorted((lease.slice.slice_id, lease.generation) for lease in (desk.leased(), desk.leased())) == [(0, 1), (1, 0)]


def test_retry_before_the_end_or_without_failed_rows_is_refused(desk: Desk) -> None:
    desk.submit("docs-1")
    with pytest.raises(StateError, match="once it has ended"):
        desk.ledger.retry("docs-1", desk.clock())
    desk.finish()
    with pytest.raises(StateError, match="no failed rows"):
        desk.ledger.retry("docs-1", desk.clock())


def test_a_part_of_the_generation_before_a_retry_does_not_count(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    frozen = desk.leased("frozen")
    desk.clock.advance(LEASE_S)
    desk.commit(desk.leased("b"), errors=1)
    desk.ledger.retry("docs-1", desk.clock())
    desk.commit(desk.leased("b"))
    assert not desk.commit(frozen, errors=3)
    assert (desk.ledger.show("docs-1").rows_ok, desk.ledger.show("docs-1").rows_error) == (4, 0)


def test_resume_of_a_job_whose_open_slices_are_all_leased_has_nothing_to_lease(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    desk.ledger.keep(desk.leased("a").lease_id, PartStats(rows_error=1), desk.clock())
    held = [desk.leased("b"), desk.leased("b")]
    _failed(desk)
    assert desk.ledger.resume("docs-1", desk.clock()).state is JobState.QUEUED
    assert desk.lease("c") is None
    desk.ledger.check()
    for lease in held:
        assert desk.commit(lease)
    assert desk.state() is JobState.COMPLETED


def test_retry_takes_in_the_failed_rows_of_parts_that_were_kept(desk: Desk) -> None:
    desk.submit("docs-1", 12)
    desk.ledger.keep(desk.leased().lease_id, PartStats(rows_ok=2, rows_error=1), desk.clock())
    _failed(desk)
    view = desk.ledger.retry("docs-1", desk.clock())
    assert (view.rows_error, view.rows_to_retry) == (1, 1)
    assert [(lease.slice.slice_id, lease.generation) for lease in (desk.leased(), desk.leased(), desk.leased())] == [(0, 1), (1, 0), (2, 0)]
    desk.ledger.check()


def test_retry_of_a_retry_that_was_stopped_is_one_generation_further(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    desk.finish(errors=2)
    desk.ledger.retry("docs-1", desk.clock())
    desk.ledger.cancel("docs-1", desk.clock())
    desk.ledger.retry("docs-1", desk.clock())
    assert desk.leased().generation == 2


def test_retry_waits_for_replicas_that_live_to_give_their_slices_back(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    desk.commit(desk.leased("a"), errors=1)
    desk.leased("b")
    _failed(desk)
    with pytest.raises(StateError, match="docs-1 has rows in flight; try again in a moment"):
        desk.ledger.retry("docs-1", desk.clock())
    desk.clock.advance(LEASE_S)
    assert desk.ledger.retry("docs-1", desk.clock()).state is JobState.QUEUED


# -- leases -------------------------------------------------------------------------------------------------------------------------


def test_slices_are_leased_once_each_in_order(desk: Desk) -> None:
    desk.submit("docs-1", 10)
    leases = [desk.leased(holder) for holder in ("a", "b", "a")]
    assert [(lease.slice.slice_id, lease.slice.row_start, lease.slice.row_count) for lease in leases] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    assert desk.lease("c") is None


def test_two_jobs_get_leases_in_turn(desk: Desk) -> None:
    desk.submit("docs-1", 16)
    desk.submit("docs-2", 16)
    given = []
    for _ in range(6):
        desk.clock.advance(0.1)
        given.append(desk.leased().job.id)
    assert given == ["docs-1", "docs-2"] * 3


@pytest.mark.parametrize(
    ("slice_rows", "row_tokens"), [((2, 8), (10, 10)), ((4, 4), (300, 30)), ((8, 2), (7, 90))], ids=["slices", "rows", "both"]
)
def test_jobs_are_leased_as_many_tokens_whatever_the_size_of_their_slices_and_rows(
    desk: Desk, slice_rows: tuple[int, int], row_tokens: tuple[int, int]
) -> None:
    size = dict(zip(("docs-1", "docs-2"), row_tokens, strict=True))
    for job_id, rows in zip(size, slice_rows, strict=True):
        desk.ledger.submit(scripted_plan(job_id, 480, rows), new=True)
    tokens = dict.fromkeys(size, 0)
    for _ in range(30):
        lease = desk.leased()
        tokens[lease.job.id] += lease.slice.row_count * size[lease.job.id]
        desk.commit(lease, prompt_tokens=lease.slice.row_count * size[lease.job.id])
    one, other = tokens.values()
    most = max(rows * each for rows, each in zip(slice_rows, row_tokens, strict=True))
    assert abs(one - other) <= 3 * most, "a slice apart, and the first of each, leased before it is known what a row takes"


@pytest.mark.parametrize("step_s", [0.0, -1.0], ids=["stands-still", "goes-back"])
def test_two_jobs_get_leases_in_turn_whatever_the_wall_clock_does(desk: Desk, step_s: float) -> None:
    desk.submit("docs-1", 16)
    desk.submit("docs-2", 16)
    given = []
    for _ in range(6):
        desk.clock.advance(step_s)
        given.append(desk.leased().job.id)
    assert given == ["docs-1", "docs-2"] * 3


def test_a_job_that_comes_late_is_served_next(desk: Desk) -> None:
    desk.submit("docs-1", 40)
    desk.leased()
    desk.leased()
    desk.submit("docs-2", 4)
    assert desk.leased().job.id == "docs-2"


def test_a_replica_of_another_model_gets_nothing(desk: Desk) -> None:
    desk.submit("docs-1", model="other")
    assert desk.lease() is None
    assert desk.ledger.lease("a", "other", desk.clock()) is not None


def test_a_heartbeat_renews_a_lease_for_a_full_term(desk: Desk) -> None:
    desk.submit("docs-1")
    lease = desk.leased()
    for _ in range(5):
        desk.clock.advance(LEASE_S - 1.0)
        assert desk.beat(lease) == []
    assert desk.ledger.expire(desk.clock()) == 0


def test_a_heartbeat_tells_rows_under_way_and_what_is_left_to_expect(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    lease = desk.leased()
    desk.beat(lease)
    desk.clock.advance(2.0)
    desk.beat(lease, rows=2, tokens=100)
    view = desk.ledger.show("docs-1")
    assert (view.rows_running, view.offline_tokens_per_s, view.eta_s) == (2, 50.0, 6.0)


def test_a_lease_that_is_not_renewed_goes_to_another_replica(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lost = desk.leased("a")
    assert lost.expires_at_s == desk.clock() + LEASE_S
    desk.clock.advance(LEASE_S)
    taken = desk.leased("b")
    assert (taken.slice, taken.attempt) == (lost.slice, 2)
    assert desk.beat(lost, "a") == [lost.lease_id]
    assert desk.beat(taken, "b") == []


def test_a_replica_cannot_renew_a_lease_of_another(desk: Desk) -> None:
    desk.submit("docs-1")
    lease = desk.leased("a")
    assert desk.beat(lease, "b") == [lease.lease_id]
    assert desk.beat(lease, "a") == []


def test_releasing_an_unknown_lease_changes_nothing(desk: Desk) -> None:
    desk.submit("docs-1")
    lease = desk.leased()
    desk.ledger.release("0123456789abcdef", desk.clock())
    assert desk.beat(lease) == []


# -- commits ------------------------------------------------------------------------------------------------------------------------


def test_counts_add_up_over_slices(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    desk.commit(desk.leased(), errors=1, rows_truncated=1, prompt_tokens=100, cached_tokens=30, output_tokens=20, preemptions=2)
    desk.commit(desk.leased(), errors=2, rows_recomputed=3, prompt_tokens=50, cached_tokens=10, output_tokens=5, preemptions=1)
    view = desk.ledger.show("docs-1")
    assert (view.rows_ok, view.rows_error, view.rows_truncated, view.rows_recomputed) == (5, 3, 1, 3)
    assert (view.prompt_tokens, view.cached_tokens, view.output_tokens, view.preemptions) == (150, 40, 25, 3)


def test_a_commit_after_the_lease_was_lost_does_not_count_while_another_works_on_the_slice(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lost = desk.leased("a")
    desk.clock.advance(LEASE_S)
    taken = desk.leased("b")
    assert not desk.commit(lost)
    assert desk.ledger.show("docs-1").rows_ok == 0
    assert desk.commit(taken)
    assert desk.state() is JobState.COMPLETED


def test_a_commit_after_another_finished_the_slice_takes_over_the_counts_once(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lost = desk.leased("a")
    desk.clock.advance(LEASE_S)
    desk.commit(desk.leased("b"), prompt_tokens=10)
    assert not desk.commit(lost, errors=1, prompt_tokens=12)
    view = desk.ledger.show("docs-1")
    assert (view.rows_ok, view.rows_error, view.prompt_tokens) == (3, 1, 12)


@pytest.mark.parametrize("rows", [5, 3])
def test_a_part_with_more_or_fewer_rows_than_its_slice_is_refused_and_the_slice_leased_again(desk: Desk, rows: int) -> None:
    desk.submit("docs-1", 4)
    lease = desk.leased()
    assert not desk.ledger.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=rows - 1, rows_error=1), desk.clock())
    desk.ledger.check()
    assert (desk.state(), desk.ledger.show("docs-1").rows_ok) == (JobState.RUNNING, 0)
    assert desk.commit(desk.leased("b"))
    assert (desk.state(), desk.ledger.show("docs-1").rows_ok) == (JobState.COMPLETED, 4)


def test_rows_computed_twice_stay_counted_when_a_slice_is_committed_again(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    desk.commit(desk.leased(), errors=1, rows_recomputed=2)
    desk.ledger.retry("docs-1", desk.clock())
    desk.commit(desk.leased(), rows_recomputed=1)
    assert desk.ledger.show("docs-1").rows_recomputed == 3


class Broken:
    """A ledger's disk that refuses one statement until it is mended."""

    def __init__(self, ledger: Ledger, statement: str) -> None:
        self._run = ledger._book.run
        self.statement: str | None = statement
        ledger._book.run = self  # type: ignore[assignment]

    def __call__(self, name: str, values: object = ()) -> object:
        if name == self.statement:
            raise StorageError("no space left")
        return self._run(name, values)  # type: ignore[arg-type]


def test_on_a_full_disk_no_lease_is_given_and_the_job_stays_as_it_was(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    before = desk.ledger.show("docs-1")
    disk = FullDisk(desk.ledger)
    with pytest.raises(StorageError, match="No space left on device"):
        desk.lease()
    disk.full = False
    assert desk.ledger.show("docs-1") == before
    desk.leased()
    assert desk.ledger.table("jobs").column("state").to_pylist() == ["running"]


@pytest.mark.parametrize("statement", ["set_state", "set_judged"])
@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_job_that_should_go_on_and_cannot_be_written_stays_as_it_was(desk: Desk, verb: str, statement: str) -> None:
    desk.submit("docs-1", 8)
    desk.commit(desk.leased(), errors=1)
    desk.ledger.adjust("docs-1", JobChange(deadline_at_s=desk.clock() + 1.0))
    desk.clock.advance(1.0)
    desk.ledger.expire(desk.clock())
    before, written = desk.ledger.show("docs-1"), desk.ledger.table("jobs")
    disk = Broken(desk.ledger, statement)
    with pytest.raises(StorageError):
        getattr(desk.ledger, verb)("docs-1", desk.clock())
    disk.statement = None
    desk.ledger.check()
    assert (desk.ledger.show("docs-1"), desk.ledger.table("jobs")) == (before, written)
    assert getattr(desk.ledger, verb)("docs-1", desk.clock()).deadline_at_s is None


def test_a_commit_that_cannot_be_written_leaves_the_lease_in_force(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lease = desk.leased()
    disk = Broken(desk.ledger, "add_counts")
    with pytest.raises(StorageError):
        desk.commit(lease)
    disk.statement = None
    desk.ledger.check()
    assert desk.beat(lease) == []
    assert desk.commit(lease)


@pytest.mark.parametrize("statement", ["add_counts", "set_judged"])
def test_a_commit_of_retried_rows_that_cannot_be_written_judges_nothing(desk: Desk, statement: str) -> None:
    desk.submit("docs-1", 4)
    desk.finish(errors=3)
    desk.ledger.retry("docs-1", desk.clock())
    lease = desk.leased()
    disk = Broken(desk.ledger, statement)
    with pytest.raises(StorageError):
        desk.commit(lease, errors=1)
    disk.statement = None
    desk.ledger.check()
    assert desk.commit(lease, errors=1)


def test_a_release_that_cannot_be_written_is_made_up_for_when_the_lease_expires(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    lease = desk.leased()
    disk = Broken(desk.ledger, "free_slice")
    with pytest.raises(StorageError):
        desk.ledger.release(lease.lease_id, desk.clock())
    disk.statement = None
    desk.ledger.check()
    desk.clock.advance(LEASE_S)
    assert desk.leased("b").slice == lease.slice


def test_a_lease_that_cannot_be_written_is_not_given(desk: Desk) -> None:
    desk.submit("docs-1", 4)
    disk = Broken(desk.ledger, "take_slice")
    with pytest.raises(StorageError):
        desk.lease()
    disk.statement = None
    desk.ledger.check()
    assert desk.state() is JobState.QUEUED
    assert desk.leased().slice.slice_id == 0


def test_a_ledger_that_was_interrupted_between_its_store_and_its_memory_is_opened_again(kept_desk: Desk) -> None:
    """A commit that fails once the store has it leaves a lease in memory whose slice is done."""
    kept_desk.submit("docs-1", 4)
    lease = kept_desk.leased()
    account = kept_desk.ledger._commits._account
    kept_desk.ledger._commits._account = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        kept_desk.commit(lease)
    kept_desk.ledger._commits._account = account  # type: ignore[method-assign]
    kept_desk.clock.advance(LEASE_S)
    with pytest.raises(ReopenError, match=r"docs-1 .* it is opened again"):
        kept_desk.lease("b")
    kept_desk.reopen(new_server=False)
    kept_desk.ledger.check()
    assert kept_desk.lease("b") is None
    assert (kept_desk.state(), kept_desk.ledger.show("docs-1").rows_ok) == (JobState.COMPLETED, 4)


# -- opening again ------------------------------------------------------------------------------------------------------------------


def test_the_same_server_finds_its_leases_with_a_full_term(kept_desk: Desk) -> None:
    kept_desk.submit("docs-1", 8)
    lease = kept_desk.leased()
    kept_desk.clock.advance(LEASE_S - 1.0)
    kept_desk.reopen(new_server=False)
    kept_desk.clock.advance(LEASE_S - 1.0)
    assert kept_desk.beat(lease) == []
    assert kept_desk.commit(lease)
    assert kept_desk.ledger.show("docs-1").rows_ok == 4


def test_a_new_server_frees_the_leases_of_the_old_one(kept_desk: Desk) -> None:
    kept_desk.submit("docs-1", 8)
    lease = kept_desk.leased()
    kept_desk.reopen(new_server=True)
    assert kept_desk.beat(lease) == [lease.lease_id]
    assert not kept_desk.commit(lease)
    assert kept_desk.leased("b").slice == lease.slice


def test_a_new_server_ends_what_was_being_cancelled(kept_desk: Desk) -> None:
    kept_desk.submit("docs-1")
    _cancelling(kept_desk)
    kept_desk.reopen(new_server=True)
    assert kept_desk.state() is JobState.CANCELLED


def test_everything_a_job_says_survives_opening_again(kept_desk: Desk) -> None:
    kept_desk.submit("docs-1", 8)
    kept_desk.commit(kept_desk.leased(), errors=1, output_tokens=7)
    kept_desk.ledger.pause("docs-1", kept_desk.clock())
    kept_desk.ledger.say("docs-1", "waits for disk space")
    before = kept_desk.ledger.show("docs-1")
    spec = spec_of(kept_desk.ledger, "docs-1")
    kept_desk.reopen(new_server=True)
    assert kept_desk.ledger.show("docs-1") == before
    assert spec_of(kept_desk.ledger, "docs-1") == spec


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "not-a-ledger.sqlite"
    broken.write_bytes(b"nothing that SQLite could read" * 100)
    with pytest.raises(StorageError, match=r"the ledger .* is damaged: .*; stop the server and run: harvester repair"):
        Ledger(broken, tmp_path, lease_s=1.0, now_s=0.0, new_server=True)


@pytest.mark.parametrize("beats", [True, False], ids=["after a heartbeat", "before any"])
def test_a_ledger_that_is_opened_again_knows_the_replicas_that_go_on_with_a_job(kept_desk: Desk, beats: bool) -> None:
    kept_desk.submit("docs-1")
    held = kept_desk.leased("b")
    kept_desk.reopen(new_server=False)
    if beats:
        assert kept_desk.beat(held, "b") == []
    assert refused(kept_desk, "a").state is JobState.RUNNING


# -- tables -------------------------------------------------------------------------------------------------------------------------


def test_the_table_of_leases_shows_the_terms_as_they_are_now(desk: Desk) -> None:
    desk.submit("docs-1", 8)
    lease = desk.leased()
    desk.clock.advance(5.0)
    desk.beat(lease)
    rows = desk.ledger.table("leases").sort_by("slice_id").to_pylist()
    assert [(row["state"], row["holder"], row["expires_at_s"]) for row in rows] == [
        ("leased", "a", desk.clock() + LEASE_S),
        ("pending", None, None),
    ]


def test_the_table_of_jobs_has_a_line_for_each_job(desk: Desk) -> None:
    desk.submit("docs-1")
    desk.submit("docs-2")
    assert sorted(desk.ledger.table("jobs").column("id").to_pylist()) == ["docs-1", "docs-2"]


def test_there_are_no_other_tables(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="there are jobs, leases, harvest, lengths, usage"):
        desk.ledger.table("rows")
