"""The ledger: which jobs there are, which slices are free, leased or done. One owner, one store (`jobs.ledger.store.contract`).

It handles slices, never input rows: a job of 20 million rows is 80,000 short records here. Every change is one transaction; a process
that dies between two calls leaves the last whole one. Leases are renewed in memory, so a heartbeat costs no write. A ledger that is
opened again gives every lease of the same server one more full term. When the server itself is new, it frees them all at once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config import DeadlineConfig
from jobs.errors import StateError
from jobs.ledger.commits import Commits
from jobs.ledger.counts import LedgerCount
from jobs.ledger.jobfile import insert_job, write_job
from jobs.ledger.record import ActiveLease, JobRecord, Refusals, tokens_per_row
from jobs.ledger.store.contract import closed_on_error
from jobs.ledger.store.place import Place
from jobs.spec import COUNTS, JobPlan, JobView, Lease, LeaseProgress, SliceSpec
from jobs.states import ACTIVE, ENDED, JobState

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror


class Ledger(Commits):
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
        super().__init__(place, results_root, deadlines or DeadlineConfig(), now_s, mirror)
        self._lease_s = lease_s
        self._turns = count(1)
        self._refusals = Refusals(lease_s)
        self._pass = 0.0  # the least turn at the last lease; a job that had nothing to do saves up none
        with closed_on_error(self._store):
            if new_server:
                self._run("free_all")
            for job_id, slice_id, lease_id, holder, generation, row_count, attempt, *kept in self._run("leased_slices"):
                lease = ActiveLease(
                    job_id, slice_id, holder, now_s + lease_s, generation, tuple(kept), row_count=row_count, leased_at_s=now_s
                )
                self._leases[lease_id] = lease.first_of(attempt)
            self._pending = dict.fromkeys(job_id for job_id in self._jobs if self._has_pending(job_id))
            for record in self._jobs.values():
                self._settle(record, now_s)

    # -- jobs ---------------------------------------------------------------------------------------------------------------------

    def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        """Enter a job; or return its owner's with the same key (cancelled and failed ones apart), with False, unless ``new``."""
        if not new:
            same = self._run("find_key", [plan.spec.key, plan.spec.owner])
            if same:
                earlier = self._jobs[same[0][0]]
                if earlier.state is JobState.EXPIRED:  # it goes on, by the deadline of this time
                    self._rewrite(earlier, {"deadline_at_s": plan.spec.deadline_at_s})
                    self.resume(earlier.spec.id, plan.spec.created_at_s)
                return self._adopt(earlier, plan.spec), False
        spec = plan.spec
        known = self._jobs.get(spec.id)
        if known is not None and (known.spec.key, known.spec.created_at_s) == (spec.key, spec.created_at_s):
            return self.show(spec.id), True  # the answer of the same call was lost
        if known is not None:
            raise StateError(f"job id {spec.id} is taken; submit again")
        if self._keeps_jobs:
            write_job(self._results_root, plan, self._mirror)
        with self._store.transaction():
            insert_job(self._store, plan)
        self._enter(self._store.rows("job_row", [spec.id])[0]).open_slices = len(plan.slices)
        self._pending[spec.id] = None
        return self.show(spec.id), True

    def cancel(self, job_id: str, now_s: float) -> JobView:
        record = self._record(job_id)
        going = record.state in (JobState.RUNNING, JobState.CANCELLING)
        target = JobState.CANCELLING if going and self._leases.holds(record.spec.id) else JobState.CANCELLED
        return self._change(record, target, now_s, None)

    def pause(self, job_id: str, now_s: float) -> JobView:
        return self._change(self._record(job_id), JobState.PAUSED, now_s, None)

    def resume(self, job_id: str, now_s: float) -> JobView:
        """Take up what is left of a paused, cancelled, failed or expired job."""
        record = self._record(job_id)
        if record.state is JobState.COMPLETED:
            raise StateError(f"job {record.spec.id} is completed: nothing is left to do; retry its failed rows with: harvester retry")
        rows, errors = self._so_far(record)
        self._run("set_judged", [rows, errors, record.spec.id])
        self._took(record, {"rows_judged": rows, "errors_judged": errors})
        self._change(record, JobState.QUEUED, now_s, self._drop_deadline(record, now_s))
        self._settle(record, now_s)
        return self._view(record)

    def retry(self, job_id: str, now_s: float) -> JobView:
        """Compute the failed rows of an ended job again, as a new generation of their slices; with them what an expired one had left."""
        record = self._record(job_id)
        if record.state not in ENDED:
            raise StateError(f"job {record.spec.id} is {record.state}; failed rows can be retried once it has ended")
        if record.row["rows_error"] == 0:
            raise StateError(f"job {record.spec.id} has no failed rows to retry")
        generation, note = record.row["generation"] + 1, self._drop_deadline(record, now_s)
        with self._store.transaction():
            self._run("retry_slices", [generation, record.spec.id])
            self._run("set_generation", [generation, record.spec.id])
            values = self._write_state(record, JobState.QUEUED, now_s, note)
        self._took(record, {**values, "generation": generation})
        ((record.open_slices,),) = self._run("open_slices", [record.spec.id])
        self._pending[record.spec.id] = None
        return self._view(record)

    # -- leases -------------------------------------------------------------------------------------------------------------------

    def lease(self, holder: str, model: str, now_s: float) -> Lease | None:
        """The next free slice of the job that was given least for its weight, for a replica of ``model``; None when there is none."""
        self.expire(now_s)
        self._refusals.saw(holder, now_s, model)
        refused = self._refusals.of(holder, now_s)
        waiting = (record for job_id in self._pending if (record := self._jobs[job_id]).serves(model) and job_id not in refused)
        first = min(waiting, key=lambda e: (e.turn, e.granted, e.row["created_at_s"]), default=None)
        if first is None:
            if not refused:  # else it might be what it cannot read that a lease is split for
                self._want(holder, model, now_s)
            return None
        others = (one for one in self._jobs.values() if one.serves(model))
        return self._grant(first, holder, now_s, tokens_per_row(first, others))

    def _grant(self, record: JobRecord, holder: str, now_s: float, row_tokens: float) -> Lease:
        job_id, lease_id, expires_at_s = record.spec.id, uuid.uuid4().hex[:16], now_s + self._lease_s
        begun: dict[str, Any] = {}
        with self._store.transaction(durable=False):  # a power cut frees it, as it ends its holder
            ((slice_id, group_index, offset, row_start, row_count, generation, attempt, *kept),) = self._run(
                "take_slice", [lease_id, holder, expires_at_s, job_id, job_id]
            )
            if record.state is JobState.QUEUED:
                begun = self._write_state(record, JobState.RUNNING, now_s, record.row["message"])
        self._took(record, begun)
        lease = ActiveLease(job_id, slice_id, holder, expires_at_s, generation, tuple(kept), row_count=row_count, leased_at_s=now_s)
        self._leases[lease_id] = lease.first_of(attempt)
        if not self._has_pending(job_id):
            self._pending.pop(job_id, None)
        self._pass = max(self._pass, record.turn)
        record.turn = self._pass + row_count * row_tokens / record.hint.total_weight
        record.granted = next(self._turns)
        self._counts.add(record.spec.model, LedgerCount.LEASED)
        part = SliceSpec(slice_id=slice_id, group_index=group_index, offset=offset, row_start=row_start, row_count=row_count)
        return Lease(lease_id=lease_id, job=record.spec, slice=part, generation=generation, attempt=attempt, expires_at_s=expires_at_s)

    def refuse(self, lease_id: str, message: str, now_s: float) -> None:
        """The holder cannot read the job's source. Other replicas may: the job fails once each that lives has refused it."""
        lease = self._leases.get(lease_id)
        if lease is None or (record := self._jobs[lease.job_id]).state not in ACTIVE:
            return
        self._refusals.add(lease.job_id, lease.holder, now_s)
        if self._refusals.is_left(lease.job_id, record.spec.model, now_s):
            self.say(lease.job_id, f"{lease.holder} cannot read the source, others go on: {message}")
        else:
            self._refusals.forget(lease.job_id)  # who resumes the job has repaired something
            self.fail(lease.job_id, message, now_s)

    def heartbeat(self, holder: str, progress: Sequence[LeaseProgress], now_s: float) -> list[str]:
        """Renew ``holder``'s leases. Returns those it must drop at once: lost, or of a job that may not run."""
        self._refusals.saw(holder, now_s)
        drop: list[str] = []
        for item in progress:
            lease = self._leases.get(item.lease_id)
            if lease is None or lease.holder != holder or self._jobs[lease.job_id].state not in ACTIVE:
                drop.append(item.lease_id)
                continue
            lease.renew(item, now_s + self._lease_s)
            record = self._jobs[lease.job_id]
            record.error_example = item.error or record.error_example
            self._forecast.sample(record, self._leases.of(lease.job_id), now_s)
            self._stop_failing(record, now_s)
        self.expire(now_s)
        return drop

    def expire(self, now_s: float) -> int:
        """Free the leases that were not renewed in time, and end the jobs whose deadline has passed. Returns how many leases."""
        for job_id in list(self._unsettled):
            self._settle(self._jobs[job_id], now_s)
        self.expire_jobs(now_s)
        over = self._leases.over(now_s)
        for lease_id in over:
            self._counts.add(self._jobs[self._leases[lease_id].job_id].spec.model, LedgerCount.LOST)
        if over:
            self._free(over, now_s)
        if not self._leases:
            self._forecast.idle(now_s)
        return len(over)

    def clock_set(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds since the last call: leases last as long as they would have, rates begin anew."""
        self._leases.shift(by_s)
        self._refusals.shift(by_s)
        self._look_at_s.clear()
        for record in self._jobs.values():
            record.rate.clear()
            record.decided_at_s = None

    def was_busy(self, for_s: float) -> None:
        """Its owner answered nobody for so long, and heartbeats wait: leases last as much longer."""
        self._leases.shift(for_s)
        self._refusals.shift(for_s)

    def counts(self) -> dict[str, dict[str, int]]:
        """By model, since the ledger was opened: see `jobs.ledger.counts`. ``leases`` are those in force now."""
        models = {record.spec.model for record in self._jobs.values()}
        held = Counter(self._jobs[lease.job_id].spec.model for lease in self._leases.values())
        return {model: {**self._counts.of(model), "leases": held[model]} for model in models}

    def check(self) -> None:
        """Invariants, for tests: counts add up, leases in force and leased slices are the same set, states fit."""
        for record in self._jobs.values():
            (sums,) = self._run("slice_sums", [record.spec.id])
            assert list(sums) == [record.row[name] for name in COUNTS], (sums, record.row)
            ((open_slices,),) = self._run("open_slices", [record.spec.id])
            assert open_slices == record.open_slices
            assert self._has_pending(record.spec.id) == (record.spec.id in self._pending)
            if record.state is JobState.COMPLETED:
                assert open_slices == 0
                assert record.row["rows_ok"] + record.row["rows_error"] == record.spec.rows_total
        assert self._pending.keys() <= self._jobs.keys()
        leased = {(job_id, slice_id, lease_id) for job_id, slice_id, lease_id, *_ in self._run("leased_slices")}
        assert leased == {(lease.job_id, lease.slice_id, lease_id) for lease_id, lease in self._leases.items()}
