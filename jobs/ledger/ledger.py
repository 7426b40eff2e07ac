"""The ledger: which jobs there are, which slices are free, leased or done. One owner, one DuckDB file.

It handles slices, never input rows: a job of 20 million rows is 80,000 short records here. Every change is one transaction; a process
that dies between two calls leaves the last whole one. Leases are renewed in memory, so a heartbeat costs no write; a ledger that is
opened again gives every lease of the same server one more full term, and frees them all at once when the server itself is new.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa

from jobs.config import DeadlineConfig
from jobs.errors import NotFoundError, StateError
from jobs.ledger.counts import LedgerCount, LedgerCounts
from jobs.ledger.jobfile import insert_job, write_job
from jobs.ledger.record import ActiveLease, JobRecord, tokens_per_row
from jobs.ledger.register import Register
from jobs.ledger.store import TABLES
from jobs.spec import COUNTS, JobPlan, JobView, Lease, LeaseProgress, PartStats, SliceSpec, Spent
from jobs.states import ACTIVE, ENDED, JobState, SliceState

RECOMPUTED = COUNTS.index("rows_recomputed")


class Ledger(Register):
    """All methods are synchronous, take the clock as ``now_s`` and are called from one thread."""

    def __init__(
        self,
        path: Path,
        results_root: Path,
        *,
        lease_s: float,
        now_s: float,
        new_server: bool,
        deadlines: DeadlineConfig | None = None,
    ) -> None:
        super().__init__(path, results_root, deadlines or DeadlineConfig(), now_s)
        self._lease_s = lease_s
        self._turns = count(1)
        self._counts = LedgerCounts()
        self._exhausted: set[str] = set()  # jobs without a pending slice, until one is freed or retried
        self._pass = 0.0  # the least turn at the last lease; a job that had nothing to do saves up none
        if new_server:
            self._run("free_all")
        for job_id, slice_id, lease_id, holder in self._run("leased_slices"):
            self._leases[lease_id] = ActiveLease(job_id, slice_id, holder, now_s + lease_s)
        for record in self._jobs.values():
            self._settle(record, now_s)

    # -- jobs ---------------------------------------------------------------------------------------------------------------------

    def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        """Enter a job; or return its owner's with the same key (cancelled and failed ones apart), with False, unless ``new``."""
        if not new:
            same = self._run("find_key", [plan.spec.key, plan.spec.owner])
            if same:
                return self._adopt(self._jobs[same[0][0]], plan.spec), False
        spec = plan.spec
        if spec.id in self._jobs:
            raise StateError(f"job id {spec.id} is taken; submit again")
        if self._keeps_jobs:
            write_job(self._results_root, plan)
        with self._store.transaction():
            insert_job(self._store, plan)
        self._reload(spec.id)
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
        self._run("set_judged", [*self._so_far(record), record.spec.id])
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
            self._write_state(record, JobState.QUEUED, now_s, note)
        self._exhausted.discard(record.spec.id)
        self._reload(record.spec.id)
        return self._view(record)

    # -- leases -------------------------------------------------------------------------------------------------------------------

    def lease(self, holder: str, model: str, now_s: float) -> Lease | None:
        """The next free slice of the job that was given least for its weight, for a replica of ``model``; None when there is none."""
        self.expire(now_s)
        waiting = [e for job_id, e in self._jobs.items() if job_id not in self._exhausted and e.serves(model)]
        for record in sorted(waiting, key=lambda e: (e.turn, e.granted, e.row["created_at_s"])):
            free = self._run("pending_slice", [record.spec.id])
            if free:
                others = (one for one in self._jobs.values() if one.serves(model))
                return self._grant(record, free[0], holder, now_s, tokens_per_row(record, others))
            self._exhausted.add(record.spec.id)
        return None

    def _grant(self, record: JobRecord, free: Sequence[int], holder: str, now_s: float, row_tokens: float) -> Lease:
        slice_id, group_index, offset, row_start, row_count, generation, attempt, rows_kept, errors_kept = free
        lease_id, expires_at_s = uuid.uuid4().hex[:16], now_s + self._lease_s
        begins = record.state is JobState.QUEUED
        with self._store.transaction():
            self._run("lease_slice", [lease_id, holder, expires_at_s, record.spec.id, slice_id])
            if begins:
                self._write_state(record, JobState.RUNNING, now_s, record.row["message"])
        if begins:
            self._reload(record.spec.id)
        self._leases[lease_id] = ActiveLease(record.spec.id, slice_id, holder, expires_at_s, rows_kept, errors_kept)
        self._pass = max(self._pass, record.turn)
        record.turn = self._pass + row_count * row_tokens / record.hint.total_weight
        record.granted = next(self._turns)
        self._counts.add(record.spec.model, LedgerCount.LEASED)
        part = SliceSpec(slice_id=slice_id, group_index=group_index, offset=offset, row_start=row_start, row_count=row_count)
        return Lease(lease_id=lease_id, job=record.spec, slice=part, generation=generation, attempt=attempt + 1, expires_at_s=expires_at_s)

    def heartbeat(self, holder: str, progress: Sequence[LeaseProgress], now_s: float) -> list[str]:
        """Renew ``holder``'s leases. Returns those it must drop at once: lost, or of a job that may not run."""
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

    def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats, now_s: float) -> bool:
        """A part has been published. False when the lease had been lost meanwhile.

        A lost lease's part may still be the one that lies there (the last rename wins, and every edition holds the same rows), so its
        counts are taken over where the slice is done in the same generation.
        """
        record = self._record(job_id)
        lease = self._leases.get(lease_id)
        ((state, generation, *old),) = self._run("slice_stats", [record.spec.id, slice_id])
        if lease is None and not (state == SliceState.DONE and generation == stats.generation):
            return False
        with self._store.transaction():
            self._count(record, slice_id, stats, old, now_s)
            self._run("finish_slice", [record.spec.id, slice_id])
            self._forecast.committed(record, stats, now_s, first=state != SliceState.DONE and generation == 0)
            if record.state in ACTIVE and record.row["message"] is not None:
                self._run("set_message", [None, record.spec.id])  # whatever it waited for, it goes on
        self._leases.discard(lease_id)
        self._reload(record.spec.id)
        record.error_example = stats.error_example or record.error_example
        self._forecast.sample(record, self._leases.of(job_id), now_s)
        self._settle(record, now_s)
        self._stop_failing(record, now_s)
        return lease is not None

    def _count(self, record: JobRecord, slice_id: int, stats: PartStats, old: Sequence[int], now_s: float) -> None:
        """What the slice's part now holds, in place of ``old``."""
        new = [getattr(stats, name) for name in COUNTS]
        new[RECOMPUTED] += old[RECOMPUTED]  # work done twice stays done twice, whatever the part now holds
        self._run("count_slice", [*new, record.spec.id, slice_id])
        added = [n - o for n, o in zip(new, old, strict=True)]
        self._run("add_counts", [*added, record.spec.id])
        by_name = dict(zip(COUNTS, added, strict=True))
        self._counts.committed(record.spec.model, by_name)
        rows, tokens = by_name["rows_ok"] + by_name["rows_error"], {name: by_name[name] for name in ("prompt_tokens", "output_tokens")}
        self._usage.add(Spent(owner=record.spec.owner, kind="batch", requests=rows, **tokens), now_s)

    def spend(self, spent: Sequence[Spent], now_s: float) -> None:
        """Add what chat used, as its replicas tell it."""
        with self._store.transaction():
            for one in spent:
                self._usage.add(one, now_s)

    def holds(self, lease_id: str) -> bool:
        """Whether the lease is in force: nobody else works on its slice."""
        return lease_id in self._leases

    def keep(self, lease_id: str, stats: PartStats, now_s: float) -> None:
        """Give a lease back whose part holds the rows done so far. The others are done when the slice is leased again."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        record = self._jobs[lease.job_id]
        ((_, _, *old),) = self._run("slice_stats", [lease.job_id, lease.slice_id])
        with self._store.transaction():
            self._count(record, lease.slice_id, stats, old, now_s)
        self._reload(lease.job_id)
        record.error_example = stats.error_example or record.error_example
        self.release(lease_id, now_s)

    def release(self, lease_id: str, now_s: float) -> None:
        """Give a lease back undone. Unknown ones are ignored: they were lost before."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._run("free_slice", [lease.job_id, lease.slice_id])
            self._exhausted.discard(lease.job_id)
            del self._leases[lease_id]
            self._settle(self._jobs[lease.job_id], now_s)

    def held(self, job_id: str) -> int:
        """How many of the job's slices are leased now: an ended job's parts are all there once it is 0."""
        return len(self._leases.of(job_id))

    def expire(self, now_s: float) -> int:
        """Free the leases that were not renewed in time, and end the jobs whose deadline has passed. Returns how many leases."""
        self.expire_jobs(now_s)
        over = self._leases.over(now_s)
        for lease_id in over:
            self._counts.add(self._jobs[self._leases[lease_id].job_id].spec.model, LedgerCount.LOST)
            self.release(lease_id, now_s)
        if not self._leases:
            self._forecast.idle({record.spec.model for record in self._jobs.values()}, now_s)
        return len(over)

    def clock_set(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds since the last call: leases last as long as they would have, rates begin anew."""
        self._leases.shift(by_s)
        for record in self._jobs.values():
            record.rate.clear()
            record.decided_at_s = None

    def counts(self) -> dict[str, dict[str, int]]:
        """By model, since the ledger was opened: see `jobs.ledger.counts`. ``leases`` are those in force now."""
        models = {record.spec.model for record in self._jobs.values()}
        held = Counter(self._jobs[lease.job_id].spec.model for lease in self._leases.values())
        return {model: {**self._counts.of(model), "leases": held[model]} for model in models}

    # -- tables -------------------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> pa.Table:
        """A table of the ledger as Arrow, with the ends of the leases as they are now."""
        if name not in TABLES:
            raise NotFoundError(f"unknown ledger table {name!r}; there are {', '.join(TABLES)}")
        table = self._store.arrow(name)
        if name == "leases":
            ends = {lease_id: lease.expires_at_s for lease_id, lease in self._leases.items()}
            column = pa.array([ends.get(lease_id) for lease_id in table.column("lease_id").to_pylist()], pa.float64())
            table = table.set_column(table.column_names.index("expires_at_s"), "expires_at_s", column)
        return table

    def check(self) -> None:
        """Invariants, for tests: counts add up, leases in force and leased slices are the same set, states fit."""
        for record in self._jobs.values():
            (sums,) = self._run("slice_sums", [record.spec.id])
            assert list(sums) == [record.row[name] for name in COUNTS], (sums, record.row)
            ((open_slices,),) = self._run("open_slices", [record.spec.id])
            if record.state is JobState.COMPLETED:
                assert open_slices == 0
                assert record.row["rows_ok"] + record.row["rows_error"] == record.spec.rows_total
        leased = {(job_id, slice_id, lease_id) for job_id, slice_id, lease_id, _ in self._run("leased_slices")}
        assert leased == {(lease.job_id, lease.slice_id, lease_id) for lease_id, lease in self._leases.items()}
