"""A ledger's state in memory: jobs and leases in force. Each change goes to the store first, and may move its job to a new state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config import DeadlineConfig
from jobs.errors import NotFoundError
from jobs.frozen import stored
from jobs.ledger.counts import LedgerCounts
from jobs.ledger.forecast import JobForecast
from jobs.ledger.history import UsageLog
from jobs.ledger.jobfile import write_missing_jobs
from jobs.ledger.record import ActiveLeases, JobRecord
from jobs.ledger.store.contract import closed_on_error, is_in_memory
from jobs.ledger.store.place import Place, open_store
from jobs.spec import COUNTS, JobSpec, JobView
from jobs.states import ACTIVE, ENDED, JobState, check_transition

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

log = logging.getLogger("harvester.ledger")

MIN_ROWS = 100  # that a job is judged by; fewer say little about the others


class JobBook:
    """Shared by the components of one `jobs.ledger.ledger.Ledger`, and by nobody else."""

    def __init__(self, place: Place, results_root: Path, deadlines: DeadlineConfig, now_s: float, mirror: Mirror | None = None) -> None:
        self.results_root = results_root
        self.mirror = mirror
        self.store = open_store(place)
        self.run = self.store.run
        self.jobs: dict[str, JobRecord] = {}
        self.active: dict[str, JobRecord] = {}  # those of `jobs` in a state of `ACTIVE`: ended ones are kept for ever
        self.leases = ActiveLeases()
        self.counts = LedgerCounts()
        self.pending: dict[str, None] = {}  # active jobs with a slice to lease
        self._dated: set[str] = set()  # jobs with a deadline that have not ended
        self._unsettled: dict[str, None] = {}  # jobs in `settle`; those that stay here could not be written
        is_here = not isinstance(place, Path) and results_root.is_dir()  # a ledger in a database may be on a node without the folder
        self.keeps_jobs = is_here or (isinstance(place, Path) and not is_in_memory(place))
        with closed_on_error(self.store):
            self.forecast = JobForecast(self.store, self.leases, deadlines, now_s)
            self.usage = UsageLog(self.store, now_s)
            for row in self.store.rows("job_rows"):
                self.enter(row)
            self._tell_unread()
            for job_id, open_slices, rows_to_retry in self.run("open_by_job"):
                self.jobs[job_id].open_slices, self.jobs[job_id].rows_to_retry = open_slices, rows_to_retry
            if self.keeps_jobs and mirror is None:
                write_missing_jobs(self.store, results_root)

    def close(self) -> None:
        try:
            self.write_learnt()
        finally:
            self.store.close()

    def write_learnt(self) -> None:
        """Write rates, answer lengths and device hours that are not in the store yet."""
        if self.forecast.is_new:
            with self.forecast.transaction(learnt=True):
                pass

    # -- jobs ---------------------------------------------------------------------------------------------------------------------

    def record(self, job_id: str) -> JobRecord:
        """The job with this id, or the ``latest`` one. Raises `NotFoundError`."""
        if job_id == "latest" and self.jobs:
            job_id = self.run("newest_ids")[0][0]
        if job_id not in self.jobs:
            newest = ", ".join(row[0] for row in self.run("newest_ids"))
            raise NotFoundError(f"unknown job {job_id!r}; " + (f"the newest are: {newest}" if newest else "there are none yet"))
        return self.jobs[job_id]

    def view(self, record: JobRecord, *, with_lengths: bool = True) -> JobView:
        results = self.results_root / record.spec.id / "results"
        where = str(results) if self.mirror is None else self.mirror.address(results)
        return self.forecast.view(record, where, with_lengths=with_lengths)

    def rewrite(self, record: JobRecord, changes: dict[str, object]) -> None:
        """Change fields of the job's spec, in the store and in memory. Raises `StateError` for a spec that cannot be read."""
        record.check_read()
        spec = record.spec.model_copy(update=changes)
        if spec != record.spec:
            self.took(record, self._write_spec(spec))
            self.forecast.calm(record)

    def _write_spec(self, spec: JobSpec) -> dict[str, Any]:
        text = stored(spec)
        self.run("set_spec", [text, spec.id])
        return {"spec": text}

    def enter(self, row: dict[str, Any]) -> JobRecord:
        """Add a job, given its row in the store."""
        record = self.jobs[row["id"]] = JobRecord.of(row)
        self.took(record, {})
        return record

    def _tell_unread(self) -> None:
        """Log, once, how many jobs cannot be read, and why the newest cannot: they do not run."""
        unread = [record.unread for record in self.jobs.values() if record.unread is not None]
        if unread:
            log.warning("jobs_unread jobs=%d %s", len(unread), unread[0])

    def forget(self, record: JobRecord) -> None:
        """Remove a job from memory, after the store has deleted it and its slices."""
        del self.jobs[record.spec.id]
        self.active.pop(record.spec.id, None)
        self._dated.discard(record.spec.id)
        self._unsettled.pop(record.spec.id, None)
        self.pending.pop(record.spec.id, None)

    def took(self, record: JobRecord, values: dict[str, Any]) -> None:
        """Update the job in memory with ``values`` that the store has written to its row."""
        record.take(values)
        if record.state in ACTIVE:
            self.active[record.spec.id] = record
        else:
            self.active.pop(record.spec.id, None)
        self.update_pending(record)
        if record.spec.deadline_at_s is None or record.state in ENDED:
            self._dated.discard(record.spec.id)
        else:
            self._dated.add(record.spec.id)

    def change(self, record: JobRecord, target: JobState, now_s: float, message: str | None) -> JobView:
        """Move a job to ``target``, unless it is there. Raises `StateError` for a forbidden transition."""
        if record.state is not target:
            with self.forecast.transaction(now_s, learnt=target in ENDED):
                values = self.write_state(record, target, now_s, message)
            self.took(record, values)
        return self.view(record)

    def write_state(self, record: JobRecord, target: JobState, now_s: float, message: str | None) -> dict[str, Any]:
        """Write the new state to the store. After its transaction the caller gives the result to `took`, which changes the record."""
        check_transition(record.spec.id, record.state, target)
        started_at_s = record.row["started_at_s"] or (now_s if target is JobState.RUNNING else None)
        ended_at_s = now_s if target in ENDED else None
        values = {"state": target.value, "started_at_s": started_at_s, "ended_at_s": ended_at_s, "message": message}
        self.run("set_state", [*values.values(), record.spec.id])
        if target not in ACTIVE:
            record.rate.clear()
            record.stall.clear()
            self.forecast.calm(record)
        return values

    def write_queued(self, record: JobRecord, now_s: float) -> dict[str, Any]:
        """`write_state` for a job that goes on: its rows so far are not judged again unless retried, and a passed deadline is removed.

        Raises `StateError` for a job whose spec cannot be read.
        """
        record.check_read()
        spec = record.spec
        is_late = spec.deadline_at_s is not None and spec.deadline_at_s <= now_s  # it would expire at once
        note = f"its deadline had passed, so it goes on without one; give one with: harvester resume {spec.id} --deadline 6h"
        values = self.write_state(record, JobState.QUEUED, now_s, note if is_late else None)
        if is_late:
            values |= self._write_spec(spec.model_copy(update={"deadline_at_s": None}))
        rows, errors = self.so_far(record)
        self.run("set_judged", [rows, errors, spec.id])
        return {**values, "rows_judged": rows, "errors_judged": errors}

    def retry(self, record: JobRecord, now_s: float) -> JobView:
        """Open the slices with failed rows in a new generation. Call it for an ended job without leases."""
        generation = record.row["generation"] + 1
        with self.store.transaction():
            self.run("retry_slices", [generation, record.spec.id])
            self.run("set_generation", [generation, record.spec.id])
            values = self.write_queued(record, now_s)
        self.took(record, {**values, "generation": generation})
        ((record.open_slices, record.rows_to_retry),) = self.run("open_slices", [record.spec.id])
        self.update_pending(record)
        return self.view(record)

    def fail(self, record: JobRecord, message: str, now_s: float) -> None:
        """Fail a job that cannot go on, unless it has ended."""
        if record.state not in ENDED:
            self.change(record, JobState.FAILED, now_s, message)

    def say(self, record: JobRecord, message: str | None) -> None:
        """Note why a job waits; None takes the note back."""
        if record.row["message"] != message:
            self.run("set_message", [message, record.spec.id])
            record.row["message"] = message

    def settle(self, record: JobRecord, now_s: float) -> None:
        """End a job that has no open slice, or is being cancelled and has no lease. Where the store fails, `settle_left` tries again."""
        self._unsettled[record.spec.id] = None
        if record.state is JobState.CANCELLING and not self.leases.has_of_job(record.spec.id):
            self.change(record, JobState.CANCELLED, now_s, None)
        if record.open_slices == 0 and record.state in (*ACTIVE, JobState.PAUSED):
            failed = record.row["rows_ok"] == 0
            message = all_failed_message(record.row["rows_error"], record.error_example) if failed else None
            self.change(record, JobState.COMPLETED, now_s, message)
        del self._unsettled[record.spec.id]

    def settle_left(self, now_s: float) -> None:
        """`settle` again the jobs whose end could not be written."""
        for job_id in list(self._unsettled):
            self.settle(self.jobs[job_id], now_s)

    def so_far(self, record: JobRecord) -> tuple[int, int]:
        """Rows done, and those of them that failed, whether published or not."""
        running = self.leases.running(record.spec.id)
        return record.rows_done + running.rows, record.row["rows_error"] + running.errors

    def stop_failing(self, record: JobRecord, now_s: float) -> None:
        """Fail a job if too many of its rows failed since it was last resumed or retried. Retried rows count as new."""
        rows, errors = self.so_far(record)
        new_rows, new_errors = rows - record.row["rows_judged"], errors - record.row["errors_judged"]
        max_share = record.spec.max_error_rate
        if record.state in ACTIVE and over_rate(new_rows, new_errors, max_share):
            message = stop_message(record.spec.id, new_rows, new_errors, max_share, record.error_example)
            self.change(record, JobState.FAILED, now_s, message)

    def expire_jobs(self, now_s: float) -> None:
        """End the jobs whose deadline has passed."""
        for record in [self.jobs[job_id] for job_id in self._dated]:
            if record.is_over(now_s):
                message = f"its deadline passed; its rows are kept; go on without one: harvester resume {record.spec.id}"
                self.change(record, JobState.EXPIRED, now_s, message)

    # -- leases -------------------------------------------------------------------------------------------------------------------

    def has_pending(self, record: JobRecord) -> bool:
        """Whether a slice of the job can be leased now."""
        return record.state in ACTIVE and record.open_slices > self.leases.count(record.spec.id)

    def update_pending(self, record: JobRecord) -> None:
        """Call when the job's state, its open slices or its leases have changed."""
        if self.has_pending(record):
            self.pending[record.spec.id] = None
        else:
            self.pending.pop(record.spec.id, None)

    def free(self, lease_ids: Sequence[str], now_s: float) -> None:
        """End leases whose slices are not done."""
        with self.store.transaction(durable=False):
            for lease_id in lease_ids:
                self.run("free_slice", [self.leases[lease_id].job_id, self.leases[lease_id].slice_id])
        self.freed(lease_ids, now_s)

    def freed(self, lease_ids: Sequence[str], now_s: float) -> None:
        """Remove leases from memory, after the store has freed their slices."""
        job_ids = dict.fromkeys(self.leases[lease_id].job_id for lease_id in lease_ids)
        for lease_id in lease_ids:
            del self.leases[lease_id]
        for job_id in job_ids:
            self.update_pending(self.jobs[job_id])
        self._unsettled |= job_ids
        for job_id in job_ids:
            self.settle(self.jobs[job_id], now_s)

    def check(self) -> None:
        """Invariants, for tests: counts add up, leases in force and leased slices are the same set, states fit."""
        self.leases.check()
        assert self.active == {job_id: record for job_id, record in self.jobs.items() if record.state in ACTIVE}
        for record in self.jobs.values():
            (sums,) = self.run("slice_sums", [record.spec.id])
            assert list(sums) == [record.row[name] for name in COUNTS], (sums, record.row)
            ((open_slices, rows_to_retry),) = self.run("open_slices", [record.spec.id])
            assert (open_slices, rows_to_retry) == (record.open_slices, record.rows_to_retry)
            assert self.has_pending(record) == (record.spec.id in self.pending)
            (row,) = self.store.rows("job_row", [record.spec.id])
            assert all(row[name] == record.row[name] for name in ("rows_judged", "errors_judged")), (row, record.row)
            assert 0 <= row["errors_judged"] <= row["rows_judged"], row
            if record.state is JobState.COMPLETED:
                assert open_slices == 0
                assert record.row["rows_ok"] + record.row["rows_error"] == record.spec.rows_total
        assert self.pending.keys() <= self.jobs.keys()
        leased = {(job_id, slice_id, lease_id) for job_id, slice_id, lease_id, *_ in self.run("leased_slices")}
        assert leased == {(lease.job_id, lease.slice_id, lease_id) for lease_id, lease in self.leases.items()}


def over_rate(rows: int, errors: int, max_share: float) -> bool:
    """Whether so many of ``rows`` failed that the job should stop. Never before `MIN_ROWS` rows, never for a share of 1."""
    return rows >= MIN_ROWS and errors > max_share * rows


def stop_message(job_id: str, rows: int, errors: int, max_share: float, example: str | None) -> str:
    failed = f"all {rows:,} rows so far" if rows == errors else f"{errors:,} of {rows:,} rows so far"
    last = f"; the last: {example}" if example else ""
    return (
        f"stopped early: {failed} failed, which is above --max-error-rate {max_share:g}{last}; its rows are kept; "
        f"continue with: harvester resume {job_id} (it stops again after {MIN_ROWS} more rows like these)"
    )


def all_failed_message(errors: int, example: str | None) -> str:
    return f"all {errors:,} rows ended as errors" + (f"; the last: {example}" if example else "")
