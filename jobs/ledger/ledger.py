"""The ledger: which jobs there are, which slices are free, leased or done. One owner, one store (`jobs.ledger.store.contract`).

It handles slices, never input rows: a job of 20 million rows is 80,000 short records here. Every change is one transaction; a process
that dies between two calls leaves the last whole one. Leases are renewed in memory, so a heartbeat costs no write. A ledger that is
opened again gives every lease of the same server one more full term. When the server itself is new, it frees them all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.config import DeadlineConfig
from jobs.errors import StateError
from jobs.hint import Demand, SchedulingHint
from jobs.ledger.book import JobBook
from jobs.ledger.commits import Commits
from jobs.ledger.counts import JobsNow, jobs_now, made, table_now
from jobs.ledger.jobfile import insert_job, write_job
from jobs.ledger.leasing import Leasing
from jobs.ledger.record import JobRecord
from jobs.ledger.steal import Stealing
from jobs.ledger.store.contract import closed_on_error
from jobs.ledger.store.place import Place
from jobs.removal import check_removable, set_aside
from jobs.spec import ERROR_RATE, JobChange, JobPlan, JobSpec, JobView, Lease, LeaseProgress, PartStats, Spent
from jobs.states import ACTIVE, ENDED, JobState

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror


class Ledger:
    """All methods are synchronous, take the clock as ``now_s`` and are called from one thread."""

    def __init__(
        self,
        place: Place,
        results_root: Path,
        *,
        lease_s: float,
        now_s: float,
        new_server: bool,
        deadlines: DeadlineConfig | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        book = self._book = JobBook(place, results_root, deadlines or DeadlineConfig(), now_s, mirror)
        with closed_on_error(book.store):
            self._stealing, self._commits = Stealing(book), Commits(book)
            self._leasing = Leasing(book, self._stealing, lease_s=lease_s, now_s=now_s, new_server=new_server)

    def close(self) -> None:
        self._book.close()

    # -- jobs ---------------------------------------------------------------------------------------------------------------------

    def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        """Add a job and return it with True. Unless ``new``, an earlier job of the owner with the same key is returned with False instead.

        Failed and cancelled jobs, and those being cancelled, do not count as earlier ones. An expired one is resumed.
        """
        book = self._book
        if not new:
            same = book.run("find_key", [plan.spec.key, plan.spec.owner])
            if same:
                earlier = book.jobs[same[0][0]]
                if earlier.state is JobState.EXPIRED:  # it goes on, by the deadline of this time
                    book.rewrite(earlier, {"deadline_at_s": plan.spec.deadline_at_s})
                    self.resume(earlier.spec.id, plan.spec.created_at_s)
                return self._adopt(earlier, plan.spec), False
        spec = plan.spec
        known = book.jobs.get(spec.id)
        if known is not None and (known.spec.key, known.spec.created_at_s) == (spec.key, spec.created_at_s):
            return self.show(spec.id), True  # the call is repeated, its answer was lost
        if known is not None:
            raise StateError(f"job id {spec.id} is taken; submit again")
        if book.keeps_jobs:
            write_job(book.results_root, plan, book.mirror)
        with book.store.transaction():
            insert_job(book.store, plan)
        record = book.enter(book.store.rows("job_row", [spec.id])[0])
        record.open_slices = len(plan.slices)
        book.update_pending(record)
        return self.show(spec.id), True

    def cancel(self, job_id: str, now_s: float) -> JobView:
        record = self._book.record(job_id)
        going = record.state in (JobState.RUNNING, JobState.CANCELLING)
        target = JobState.CANCELLING if going and self._book.leases.has_of_job(record.spec.id) else JobState.CANCELLED
        return self._book.change(record, target, now_s, None)

    def pause(self, job_id: str, now_s: float) -> JobView:
        return self._book.change(self._book.record(job_id), JobState.PAUSED, now_s, None)

    def resume(self, job_id: str, now_s: float) -> JobView:
        """Take up what is left of a paused, cancelled, failed or expired job."""
        book = self._book
        record = book.record(job_id)
        if record.state is JobState.COMPLETED:
            raise StateError(f"job {record.spec.id} is completed: nothing is left to do; retry its failed rows with: harvester retry")
        if record.state is not JobState.QUEUED:
            with book.store.transaction():
                values = book.write_queued(record, now_s)
            book.took(record, values)
        book.settle(record, now_s)
        return book.view(record)

    def retry(self, job_id: str, now_s: float) -> JobView:
        """Compute the failed rows of an ended job again, in a new generation of their slices; rows left undone are computed too.

        Raises `StateError` while a replica still has a slice of it, whose failed rows are not counted yet.
        """
        self.expire(now_s)
        book, record = self._book, self._book.record(job_id)
        if record.state not in ENDED:
            raise StateError(f"job {record.spec.id} is {record.state}; failed rows can be retried once it has ended")
        if book.leases.has_of_job(record.spec.id):
            raise StateError(f"job {record.spec.id} has rows in flight; try again in a moment")
        if record.row["rows_error"] == 0:
            raise StateError(f"job {record.spec.id} has no failed rows to retry")
        return book.retry(record, now_s)

    def adjust(self, job_id: str, change: JobChange) -> JobView:
        """Change a job's weight, deadline or error rate; what it computes stays as it is."""
        record = self._book.record(job_id)
        self._book.rewrite(record, {name: value for name, value in change.model_dump().items() if value is not None})
        return self._book.view(record)

    def fail(self, job_id: str, message: str, now_s: float) -> None:
        """End a job that cannot go on. Its committed parts stay."""
        self._book.fail(self._book.record(job_id), message, now_s)

    def say(self, job_id: str, message: str | None) -> None:
        """Note why a job waits (a full disk, say); None takes the note back."""
        self._book.say(self._book.record(job_id), message)

    def remove(self, job_id: str) -> None:
        """Delete an ended job and set its folder aside. Raises `StateError` for a job that has not ended or still has leases."""
        book = self._book
        record = book.record(job_id)
        check_removable(book.view(record))
        if book.leases.has_of_job(record.spec.id):
            raise StateError(f"job {record.spec.id} has rows in flight; try again in a moment")
        if book.keeps_jobs:
            set_aside(book.results_root, record.spec.id)
        with book.store.transaction():
            book.run("forget_slices", [record.spec.id])
            book.run("forget_job", [record.spec.id])
        book.forget(record)

    def _adopt(self, record: JobRecord, wished: JobSpec) -> JobView:
        """A repeated request for a job: an active or paused one takes over the weight, deadline and error rate that were given."""
        if record.state not in (*ACTIVE, JobState.PAUSED):
            return self._book.view(record)
        given = {"weight": wished.weight != 1.0, "deadline_at_s": True, "max_error_rate": wished.max_error_rate != ERROR_RATE}
        return self.adjust(record.spec.id, JobChange(**{name: getattr(wished, name) for name, taken in given.items() if taken}))

    # -- what there is --------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[JobView]:
        """All jobs, newest first."""
        return self.newest(None, None)[0]

    def newest(self, owner: str | None, count: int | None) -> tuple[list[JobView], int]:
        """The newest ``count`` jobs of ``owner``, newest first, and how many others it has. None: all jobs; of all owners."""
        found = [record for record in self._book.jobs.values() if owner is None or record.spec.owner == owner]
        shown = sorted(found, key=made, reverse=True)[:count]
        return [self._book.view(record) for record in shown], len(found) - len(shown)

    def now(self, ended: int, active: int | None = None) -> JobsNow:
        """Views of the jobs that are `listed`, newest first and without length bands; the rest are only counted."""
        return jobs_now(self._book.jobs.values(), partial(self._book.view, with_lengths=False), ended, active)

    def show(self, job_id: str) -> JobView:
        return self._book.view(self._book.record(job_id))

    def is_read(self, folder: str) -> bool:
        """Whether the source of a job lies in ``folder``, or is it. Makes no views, so that it may be asked for each of many jobs."""
        name, sources = Path(folder).name, (record.row["source"] for record in self._book.jobs.values())
        return any(name in source and Path(source).is_relative_to(folder) for source in sources)

    def hints(self, now_s: float) -> dict[str, SchedulingHint]:
        """The scheduling hint of each active job: its weight, and the boost and share for its deadline."""
        return self._book.forecast.hints(self._book.active.values(), now_s)

    def demand(self, model: str, now_s: float) -> Demand:
        """What the active jobs of ``model`` ask for. Without a replica, no other call ends those whose deadline has passed."""
        self.expire(now_s)
        own = [record for job_id in self.hints(now_s) if (record := self._book.jobs[job_id]).serves(model)]
        return Demand(has_work=bool(own), is_late=any(record.standing is not None for record in own))

    def spend(self, teller: str, number: int, spent: Sequence[Spent], now_s: float) -> None:
        """Add usage of chat that a replica reports. Each replica numbers its reports, so that a repeated one counts once."""
        with self._book.store.transaction():
            for one in spent if self._book.usage.is_new(teller, number, now_s) else ():
                self._book.usage.add(one, now_s)

    def table(self, name: str, without: tuple[str, ...] = ()) -> pa.Table:
        """A table of the ledger as Arrow, but for the columns ``without``, with the ends of the leases as they are now."""
        self._book.write_learnt()
        return table_now(self._book.store, self._book.leases, name, without)

    def specs(self, job_ids: Sequence[str]) -> dict[str, str]:
        """The specs of those of the jobs that there are, as JSON."""
        return {job_id: self._book.jobs[job_id].row["spec"] for job_id in job_ids if job_id in self._book.jobs}

    def counts(self) -> dict[str, dict[str, int]]:
        """By model, since the ledger was opened: see `jobs.ledger.counts`. ``leases`` are those in force now."""
        book = self._book
        models = {record.spec.model for record in book.jobs.values()}
        return {model: {**book.counts.of(model), "leases": book.leases.models[model]} for model in models}

    # -- leases -------------------------------------------------------------------------------------------------------------------

    def lease(self, holder: str, model: str, now_s: float) -> Lease | None:
        """Lease to a replica of ``model`` the next free slice of the job served least for its weight; None when there is none."""
        return self._leasing.lease(holder, model, now_s)

    def heartbeat(self, holder: str, progress: Sequence[LeaseProgress], now_s: float) -> list[str]:
        """Renew ``holder``'s leases. Returns those it must drop at once: lost, or of a job that may not run."""
        return self._leasing.heartbeat(holder, progress, now_s)

    def refuse(self, lease_id: str, message: str, now_s: float) -> None:
        """Record that the holder cannot read the job's source. The job fails once every living replica has refused it."""
        self._leasing.refuse(lease_id, message, now_s)

    def living(self, model: str, asker: str | None = None, *, now_s: float) -> int:
        """Number of replicas of ``model`` that were heard of within a lease's time, and the asker, a new one. 0 while none is known.

        Replicas of an earlier version leave the asker out.
        """
        return self._leasing.living(model, asker, now_s)

    def expire(self, now_s: float) -> int:
        """Free the leases that were not renewed in time, and end the jobs whose deadline has passed. Returns how many leases."""
        return self._leasing.expire(now_s)

    def clock_set(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds since the last call: leases, rates and decisions on deadlines go on as before."""
        self._leasing.clock_set(by_s)

    def was_busy(self, for_s: float) -> None:
        """The ledger's owner answered nobody for ``for_s`` seconds, so heartbeats are late: leases are extended by as much."""
        self._leasing.was_busy(for_s)

    def wanted(self, holder: str) -> list[str]:
        """Leases of ``holder`` that should give half of their unbegun rows back, by `split`. Each is told once."""
        return self._stealing.wanted(holder)

    def split(self, lease_id: str, keep_rows: int) -> bool:
        """Split a leased slice: the holder keeps its first ``keep_rows`` rows, the others become a pending slice. Safe to repeat.

        False where the lease is lost or may not be split: the slice is unchanged.
        """
        return self._stealing.split(lease_id, keep_rows)

    def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats, now_s: float) -> bool:
        """Record that a part was published. False when the lease had been lost, or the part must be checked again (`reopen_slice`).

        Safe to repeat: a ledger may die between the change and the answer.
        """
        return self._commits.commit(lease_id, job_id, slice_id, stats, now_s)

    def keep(self, lease_id: str, stats: PartStats, now_s: float) -> bool:
        """Release a lease whose part holds the rows done so far. The others are computed when the slice is leased again.

        False where the lease had been lost: the part may have replaced a complete one, so the slice must be checked again (`reopen_slice`).
        """
        return self._commits.keep(lease_id, stats, now_s)

    def reopen_slice(self, job_id: str, slice_id: int, now_s: float) -> None:
        """Open a slice again whose complete part a partial one may have replaced, even if it was committed and its job has ended."""
        self._commits.reopen_slice(job_id, slice_id, now_s)

    def release(self, lease_id: str, now_s: float) -> None:
        """Release a lease whose slice is not done. Unknown leases are ignored: they were lost before."""
        if lease_id in self._book.leases:
            self._book.free([lease_id], now_s)

    def is_leased(self, lease_id: str) -> bool:
        """Whether the lease is in force: nobody else works on its slice."""
        return lease_id in self._book.leases

    def slices_leased(self, job_id: str) -> int:
        """How many of the job's slices are leased now: an ended job's parts are all there once it is 0."""
        return self._book.leases.count(job_id)

    holds, held = is_leased, slices_leased  # by these names replicas and applications of an earlier version ask

    def check(self) -> None:
        """Invariants, for tests."""
        self._book.check()
