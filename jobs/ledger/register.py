"""The jobs of the ledger: each in memory and in its row, its state, its weight and deadline, and when it ends by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs.config import DeadlineConfig
from jobs.errors import NotFoundError, StateError
from jobs.hint import Demand, SchedulingHint
from jobs.ledger.counts import JobsNow
from jobs.ledger.forecast import JobForecast
from jobs.ledger.history import UsageLog
from jobs.ledger.jobfile import write_missing_jobs
from jobs.ledger.record import ActiveLeases, JobRecord
from jobs.ledger.store.contract import closed_on_error, is_in_memory
from jobs.ledger.store.place import Place, open_store
from jobs.ledger.store.statements import TABLES
from jobs.removal import check_removable, set_aside
from jobs.spec import ERROR_RATE, JobChange, JobSpec, JobView, Spent
from jobs.states import ACTIVE, ENDED, JobState, check_transition

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

MIN_ROWS = 100  # that a job is judged by; fewer say little about the others


class Register:
    """What a `jobs.ledger.ledger.Ledger` knows of jobs; the leases in force are its to keep, in ``_leases``."""

    def __init__(self, place: Place, results_root: Path, deadlines: DeadlineConfig, now_s: float, mirror: Mirror | None = None) -> None:
        self._results_root = results_root
        self._mirror = mirror
        self._leases = ActiveLeases()
        self._store = open_store(place)
        self._run = self._store.run
        self._jobs: dict[str, JobRecord] = {}
        self._dated: set[str] = set()  # jobs with a deadline that have not ended
        self._unsettled: dict[str, None] = {}  # jobs that `_settle` has begun to look at: those that stay could not be written
        is_here = not isinstance(place, Path) and results_root.is_dir()  # a ledger in a database may be on a node without the folder
        self._keeps_jobs = is_here or (isinstance(place, Path) and not is_in_memory(place))
        with closed_on_error(self._store):
            self._forecast = JobForecast(self._store, deadlines, now_s)
            self._usage = UsageLog(self._store, now_s)
            for row in self._store.rows("job_rows"):
                self._enter(row)
            for job_id, open_slices in self._run("open_by_job"):
                self._jobs[job_id].open_slices = open_slices
            if self._keeps_jobs and mirror is None:
                write_missing_jobs(self._store, results_root)

    def close(self) -> None:
        try:
            self._write_learnt()
        finally:
            self._store.close()

    def jobs(self) -> list[JobView]:
        """Newest first."""
        return [self._view(record) for record in sorted(self._jobs.values(), key=_made, reverse=True)]

    def now(self, ended: int) -> JobsNow:
        """Those that have not ended and the newest ``ended`` others, newest first; of the rest there are no views, only counts."""
        active = [record for record in self._jobs.values() if record.state not in ENDED]
        newest = nlargest(ended, (record for record in self._jobs.values() if record.state in ENDED), key=_made) if ended else []
        views = [self._view(record) for record in sorted([*active, *newest], key=_made, reverse=True)]
        states = Counter((record.spec.model, record.state) for record in self._jobs.values())
        return JobsNow(views, states, len(self._jobs) - len(views))

    def show(self, job_id: str) -> JobView:
        return self._view(self._record(job_id))

    def spec(self, job_id: str) -> JobSpec:
        return self._record(job_id).spec

    def adjust(self, job_id: str, change: JobChange) -> JobView:
        """Change a job's weight, deadline or error rate; what it computes stays as it is."""
        record = self._record(job_id)
        self._rewrite(record, {name: value for name, value in change.model_dump().items() if value is not None})
        return self._view(record)

    def hints(self, now_s: float) -> dict[str, SchedulingHint]:
        """How each active job stands beside the others: its weight, and what its deadline adds."""
        return self._forecast.hints(self._jobs.values(), now_s)

    def demand(self, model: str, now_s: float) -> Demand:
        """What the active jobs of ``model`` ask for."""
        own = [record for job_id in self.hints(now_s) if (record := self._jobs[job_id]).serves(model)]
        return Demand(has_work=bool(own), is_late=any(record.standing is not None for record in own))

    def spend(self, teller: str, number: int, spent: Sequence[Spent], now_s: float) -> None:
        """Add what chat used, as its replicas tell it: each numbers its own tellings, and one that is repeated counts once."""
        with self._store.transaction():
            for one in spent if self._usage.is_new(teller, number, now_s) else ():
                self._usage.add(one, now_s)

    def table(self, name: str) -> pa.Table:
        """A table of the ledger as Arrow, with the ends of the leases as they are now."""
        if name not in TABLES:
            raise NotFoundError(f"unknown ledger table {name!r}; there are {', '.join(TABLES)}")
        self._write_learnt()
        table = self._store.arrow(name)
        if name == "leases":
            ends = {lease_id: lease.expires_at_s for lease_id, lease in self._leases.items()}
            column = pa.array([ends.get(lease_id) for lease_id in table.column("lease_id").to_pylist()], pa.float64())
            table = table.set_column(table.column_names.index("expires_at_s"), "expires_at_s", column)
        return table

    def fail(self, job_id: str, message: str, now_s: float) -> None:
        """End a job that cannot go on. Its committed parts stay."""
        record = self._record(job_id)
        if record.state not in ENDED:
            self._change(record, JobState.FAILED, now_s, message)

    def remove(self, job_id: str) -> None:
        """Forget an ended job and set its folder aside. Raises `StateError` for one that goes on, is a batch's, or still has leases."""
        record = self._record(job_id)
        check_removable(self._view(record))
        if self._leases.holds(record.spec.id):
            raise StateError(f"job {record.spec.id} has rows in flight; try again in a moment")
        if self._keeps_jobs:
            set_aside(self._results_root, record.spec.id)
        with self._store.transaction():
            self._run("forget_slices", [record.spec.id])
            self._run("forget_job", [record.spec.id])
        del self._jobs[record.spec.id]
        self._dated.discard(record.spec.id)
        self._unsettled.pop(record.spec.id, None)

    def say(self, job_id: str, message: str | None) -> None:
        """Note why a job waits (a full disk, say); None takes the note back."""
        record = self._record(job_id)
        if record.row["message"] != message:
            self._run("set_message", [message, record.spec.id])
            record.row["message"] = message

    def expire_jobs(self, now_s: float) -> None:
        """End the jobs whose deadline has passed."""
        for record in [self._jobs[job_id] for job_id in self._dated]:
            if record.is_over(now_s):
                message = f"its deadline passed; its rows are kept; go on without one: harvester resume {record.spec.id}"
                self._change(record, JobState.EXPIRED, now_s, message)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _adopt(self, record: JobRecord, wished: JobSpec) -> JobView:
        """The same job asked for again: it takes over the weight, deadline and error rate that were given this time."""
        if record.state not in (*ACTIVE, JobState.PAUSED):
            return self._view(record)
        given = {"weight": wished.weight != 1.0, "deadline_at_s": True, "max_error_rate": wished.max_error_rate != ERROR_RATE}
        return self.adjust(record.spec.id, JobChange(**{name: getattr(wished, name) for name, taken in given.items() if taken}))

    def _drop_deadline(self, record: JobRecord, now_s: float) -> str | None:
        """Take a deadline that has passed from a job that is to go on, which would expire at once. Returns what its message says of it."""
        if record.spec.deadline_at_s is None or record.spec.deadline_at_s > now_s:
            return None
        self._rewrite(record, {"deadline_at_s": None})
        return f"its deadline had passed, so it goes on without one; give one with: harvester resume {record.spec.id} --deadline 6h"

    def _rewrite(self, record: JobRecord, changes: dict[str, object]) -> None:
        spec = record.spec.model_copy(update=changes)
        if spec != record.spec:
            text = spec.model_dump_json()
            self._run("set_spec", [text, spec.id])
            record.spec = spec
            self._took(record, {"spec": text})
            self._forecast.calm(record)

    def _enter(self, row: dict[str, Any]) -> JobRecord:
        """Take a job in, as its row has it."""
        record = self._jobs[row["id"]] = JobRecord.of(row)
        self._took(record, {})
        return record

    def _took(self, record: JobRecord, values: dict[str, Any]) -> None:
        """The store has taken these values for the job's row."""
        record.take(values)
        if record.spec.deadline_at_s is None or record.state in ENDED:
            self._dated.discard(record.spec.id)
        else:
            self._dated.add(record.spec.id)

    def _write_learnt(self) -> None:
        if self._forecast.is_new:
            with self._store.transaction():
                self._forecast.write()

    def _record(self, job_id: str) -> JobRecord:
        if job_id == "latest" and self._jobs:
            job_id = self._run("newest_ids")[0][0]
        if job_id not in self._jobs:
            newest = ", ".join(row[0] for row in self._run("newest_ids"))
            raise NotFoundError(f"unknown job {job_id!r}; " + (f"the newest are: {newest}" if newest else "there are none yet"))
        return self._jobs[job_id]

    def _view(self, record: JobRecord) -> JobView:
        results = self._results_root / record.spec.id / "results"
        where = str(results) if self._mirror is None else self._mirror.address(results)
        return self._forecast.view(record, self._leases.of(record.spec.id), where)

    def _change(self, record: JobRecord, target: JobState, now_s: float, message: str | None) -> JobView:
        if record.state is not target:
            with self._store.transaction():
                values = self._write_state(record, target, now_s, message)
                if target in ENDED:
                    self._forecast.write(now_s)
            self._took(record, values)
        return self._view(record)

    def _write_state(self, record: JobRecord, target: JobState, now_s: float, message: str | None) -> dict[str, Any]:
        """Write only: the caller takes the values over (`_took`) when its transaction is whole."""
        check_transition(record.spec.id, record.state, target)
        started_at_s = record.row["started_at_s"] or (now_s if target is JobState.RUNNING else None)
        ended_at_s = now_s if target in ENDED else None
        values = {"state": target.value, "started_at_s": started_at_s, "ended_at_s": ended_at_s, "message": message}
        self._run("set_state", [*values.values(), record.spec.id])
        if target not in ACTIVE:
            record.rate.clear()
            self._forecast.calm(record)
        return values

    def _settle(self, record: JobRecord, now_s: float) -> None:
        """Move a job on that has nothing left to wait for. Where the store fails it is `expire` that tries again."""
        self._unsettled[record.spec.id] = None
        if record.state is JobState.CANCELLING and not self._leases.holds(record.spec.id):
            self._change(record, JobState.CANCELLED, now_s, None)
        if record.open_slices == 0 and record.state in (*ACTIVE, JobState.PAUSED):
            failed = record.row["rows_ok"] == 0
            message = all_failed_message(record.row["rows_error"], record.error_example) if failed else None
            self._change(record, JobState.COMPLETED, now_s, message)
        del self._unsettled[record.spec.id]

    def _so_far(self, record: JobRecord) -> tuple[int, int]:
        """Rows done, and those of them that failed, whether published or not."""
        leases = self._leases.of(record.spec.id)
        rows, errors = sum(lease.rows_running for lease in leases), sum(lease.errors_running for lease in leases)
        return record.rows_done + rows, record.row["rows_error"] + errors

    def _stop_failing(self, record: JobRecord, now_s: float) -> None:
        """End a job of whose rows too many failed since it was last resumed."""
        rows, errors = self._so_far(record)
        new_rows, new_errors = rows - record.row["rows_judged"], errors - record.row["errors_judged"]
        max_share = record.spec.max_error_rate
        if record.state in ACTIVE and over_rate(new_rows, new_errors, max_share):
            message = stop_message(record.spec.id, new_rows, new_errors, max_share, record.error_example)
            self._change(record, JobState.FAILED, now_s, message)


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


def _made(record: JobRecord) -> tuple[float, str]:
    return record.row["created_at_s"], record.row["id"]
