"""The jobs of the ledger: each in memory and in its line, its state, its terms, and when it ends by itself."""

from __future__ import annotations

from pathlib import Path

from harvester.config import DeadlineConfig
from harvester.errors import NotFoundError
from jobs.engine import Claim
from jobs.entry import Entry
from jobs.errorrate import all_failed_message, over_rate, stop_message
from jobs.oversight import Oversight
from jobs.spec import ERROR_RATE, JobChange, JobSpec, JobView
from jobs.states import ACTIVE, ENDED, JobState, check_transition
from jobs.store import Store
from jobs.term import Terms


class Register:
    """What a `jobs.ledger.Ledger` knows of jobs; the leases in force are its to keep, in ``_terms``."""

    def __init__(self, path: Path, results_root: Path, deadlines: DeadlineConfig, now_s: float) -> None:
        self._results_root = results_root
        self._terms = Terms()
        self._store = Store(path)
        self._run = self._store.run
        self._care = Oversight(self._store, deadlines, now_s)
        self._jobs = {line["id"]: Entry.of(line) for line in self._store.lines("job_rows")}

    def close(self) -> None:
        self._store.close()

    def jobs(self) -> list[JobView]:
        """Newest first."""
        entries = sorted(self._jobs.values(), key=lambda e: (e.line["created_at_s"], e.line["id"]), reverse=True)
        return [self._view(entry) for entry in entries]

    def show(self, job_id: str) -> JobView:
        return self._view(self._entry(job_id))

    def spec(self, job_id: str) -> JobSpec:
        return self._entry(job_id).spec

    def adjust(self, job_id: str, change: JobChange) -> JobView:
        """Change a job's terms; what it computes stays as it is."""
        entry = self._entry(job_id)
        self._rewrite(entry, {name: value for name, value in change.model_dump().items() if value is not None})
        return self._view(entry)

    def claims(self, now_s: float) -> dict[str, Claim]:
        """What each active job gets beside the others: its weight, and what its deadline adds."""
        return self._care.claims(self._jobs.values(), now_s)

    def fail(self, job_id: str, message: str, now_s: float) -> None:
        """End a job that cannot go on. Its committed parts stay."""
        entry = self._entry(job_id)
        if entry.state not in ENDED:
            self._change(entry, JobState.FAILED, now_s, message)

    def say(self, job_id: str, message: str | None) -> None:
        """Note why a job waits (a full disk, say); None takes the note back."""
        entry = self._entry(job_id)
        if entry.line["message"] != message:
            self._run("set_message", [message, entry.spec.id])
            entry.line["message"] = message

    def expire_jobs(self, now_s: float) -> None:
        """End the jobs whose deadline has passed."""
        for entry in self._jobs.values():
            if entry.is_over(now_s):
                message = f"its deadline passed; its rows are kept; go on without one: harvester resume {entry.spec.id}"
                self._change(entry, JobState.EXPIRED, now_s, message)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _adopt(self, entry: Entry, wished: JobSpec) -> JobView:
        """The same job asked for again: it takes over the terms that were given this time."""
        if entry.state not in (*ACTIVE, JobState.PAUSED):
            return self._view(entry)
        given = {"weight": wished.weight != 1.0, "deadline_at_s": True, "max_error_rate": wished.max_error_rate != ERROR_RATE}
        return self.adjust(entry.spec.id, JobChange(**{name: getattr(wished, name) for name, taken in given.items() if taken}))

    def _drop_deadline(self, entry: Entry, now_s: float) -> str | None:
        """Take a deadline that has passed from a job that is to go on, which would expire at once. Returns what its message says of it."""
        if entry.spec.deadline_at_s is None or entry.spec.deadline_at_s > now_s:
            return None
        self._rewrite(entry, {"deadline_at_s": None})
        return f"its deadline had passed, so it goes on without one; give one with: harvester resume {entry.spec.id} --deadline 6h"

    def _rewrite(self, entry: Entry, changes: dict[str, object]) -> None:
        spec = entry.spec.model_copy(update=changes)
        if spec != entry.spec:
            self._run("set_spec", [spec.model_dump_json(), spec.id])
            entry.spec = spec
            self._reload(spec.id)
            self._care.calm(entry)

    def _reload(self, job_id: str) -> None:
        (line,) = self._store.lines("job_row", [job_id])
        if job_id in self._jobs:
            self._jobs[job_id].line = line
        else:
            self._jobs[job_id] = Entry.of(line)

    def _entry(self, job_id: str) -> Entry:
        if job_id == "latest" and self._jobs:
            job_id = self._run("newest_ids")[0][0]
        if job_id not in self._jobs:
            newest = ", ".join(row[0] for row in self._run("newest_ids"))
            raise NotFoundError(f"unknown job {job_id!r}; " + (f"the newest are: {newest}" if newest else "there are none yet"))
        return self._jobs[job_id]

    def _view(self, entry: Entry) -> JobView:
        return self._care.view(entry, self._terms.of(entry.spec.id), str(self._results_root / entry.spec.id / "results"))

    def _change(self, entry: Entry, target: JobState, now_s: float, message: str | None) -> JobView:
        if entry.state is not target:
            self._write_state(entry, target, now_s, message)
            self._reload(entry.spec.id)
        return self._view(entry)

    def _write_state(self, entry: Entry, target: JobState, now_s: float, message: str | None) -> None:
        """Write only: the caller takes the line over when its transaction is whole."""
        check_transition(entry.spec.id, entry.state, target)
        started_at_s = entry.line["started_at_s"] or (now_s if target is JobState.RUNNING else None)
        ended_at_s = now_s if target in ENDED else None
        self._run("set_state", [target, started_at_s, ended_at_s, message, entry.spec.id])
        if target not in ACTIVE:
            entry.rate.clear()
            self._care.calm(entry)

    def _settle(self, entry: Entry, now_s: float) -> None:
        """Move a job on that has nothing left to wait for."""
        if entry.state is JobState.CANCELLING and not self._terms.holds(entry.spec.id):
            self._change(entry, JobState.CANCELLED, now_s, None)
        if entry.state in (*ACTIVE, JobState.PAUSED) and self._run("open_slices", [entry.spec.id])[0][0] == 0:
            failed = entry.line["rows_ok"] == 0
            message = all_failed_message(entry.line["rows_error"], entry.error_example) if failed else None
            self._change(entry, JobState.COMPLETED, now_s, message)

    def _so_far(self, entry: Entry) -> tuple[int, int]:
        """Rows done, and those of them that failed, whether published or not."""
        terms = self._terms.of(entry.spec.id)
        rows, errors = sum(term.rows_running for term in terms), sum(term.errors_running for term in terms)
        return entry.rows_done + rows, entry.line["rows_error"] + errors

    def _stop_failing(self, entry: Entry, now_s: float) -> None:
        """End a job of whose rows too many failed since it was last resumed."""
        rows, errors = self._so_far(entry)
        new_rows, new_errors = rows - entry.line["rows_judged"], errors - entry.line["errors_judged"]
        most_share = entry.spec.max_error_rate
        if entry.state in ACTIVE and over_rate(new_rows, new_errors, most_share):
            message = stop_message(entry.spec.id, new_rows, new_errors, most_share, entry.error_example)
            self._change(entry, JobState.FAILED, now_s, message)
