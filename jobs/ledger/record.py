"""What the ledger keeps in memory: a job with its row and its spec, and the leases in force."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from jobs.errors import StateError
from jobs.forecast.finish import Finish
from jobs.forecast.rate import Rate
from jobs.forecast.stall import Stall
from jobs.frozen import of_other
from jobs.hint import SchedulingHint
from jobs.spec import COUNTS, JobSpec, JobView, LeaseProgress, LengthBand, SourceSpec
from jobs.states import ACTIVE, ENDED, JobState
from jobs.tasks.spec import Task

NO_COUNTS = (0,) * len(COUNTS)
_OK, _ERROR = COUNTS.index("rows_ok"), COUNTS.index("rows_error")


class Running(NamedTuple):
    """Progress of leases. ``rows``, and the ``errors`` among them, are in no part yet. Of a retry they are rows that had failed: the part
    still has their errors. ``computed``: rows finished since the leases were granted, with ``tokens`` in all.
    """

    rows: int = 0
    errors: int = 0
    computed: int = 0
    tokens: int = 0


@dataclass(slots=True)
class ActiveLease:
    """A lease in force. Its counts are from the holder's last heartbeat; ``kept`` counts rows that are in the slice's part already."""

    job_id: str
    model: str
    slice_id: int
    holder: str
    expires_at_s: float
    generation: int = 0
    kept: tuple[int, ...] = NO_COUNTS  # of the rows in the slice's part, in the order of `COUNTS`
    rows_done: int = 0
    rows_found: int = 0
    rows_error: int = 0
    tokens_done: int = 0
    rows_unbegun: int = 0
    row_count: int = 0
    leased_at_s: float = 0.0
    may_split: bool = False  # nobody had the slice before: see `jobs.ledger.steal`
    is_part_doubtful: bool = False  # an earlier holder wrote its part late: see `jobs.ledger.commits`

    @property
    def running(self) -> Running:
        ok, errors = self.kept[_OK], self.kept[_ERROR] if self.generation == 0 else 0  # a retry asks again what had failed
        computed = max(0, self.rows_done - self.rows_found)
        return Running(max(0, self.rows_done - ok - errors), max(0, self.rows_error - errors), computed, self.tokens_done)

    def first_of(self, attempt: int) -> Self:
        """Set `may_split` and return self: only the first lease of a slice in its first generation may be split."""
        self.may_split = attempt == 1 and self.generation == 0
        return self

    def renew(self, item: LeaseProgress, expires_at_s: float) -> None:
        self.expires_at_s = expires_at_s
        self.rows_done, self.rows_found, self.rows_error = item.rows_done, item.rows_found, item.rows_error
        self.tokens_done, self.rows_unbegun = item.tokens_done, item.rows_unbegun


class ActiveLeases(dict[str, ActiveLease]):
    """Leases by id, indexed by job and by expiry. Change it by assignment of a new id, ``del`` and ``renew`` only."""

    def __init__(self) -> None:
        super().__init__()
        self.models: Counter[str] = Counter()  # how many leases each model has; to be read only
        self._by_job: dict[str, dict[str, ActiveLease]] = {}
        self._running: dict[str, Running] = {}  # by job, over its leases: a heartbeat must not cost a sum over them
        self._ends: list[tuple[float, str]] = []  # a heap with one entry a lease, at its end or before it

    def __setitem__(self, lease_id: str, lease: ActiveLease) -> None:
        super().__setitem__(lease_id, lease)
        self._by_job.setdefault(lease.job_id, {})[lease_id] = lease
        self.models[lease.model] += 1
        self._changed(lease.job_id, Running(), lease.running)
        heapq.heappush(self._ends, (lease.expires_at_s, lease_id))

    def __delitem__(self, lease_id: str) -> None:
        lease = self[lease_id]
        super().__delitem__(lease_id)
        del self._by_job[lease.job_id][lease_id]
        self.models -= Counter([lease.model])
        self._changed(lease.job_id, lease.running, Running())
        if not self._by_job[lease.job_id]:
            del self._by_job[lease.job_id], self._running[lease.job_id]

    def renew(self, item: LeaseProgress, expires_at_s: float) -> None:
        lease = self[item.lease_id]
        before = lease.running
        lease.renew(item, expires_at_s)
        self._changed(lease.job_id, before, lease.running)

    def running(self, job_id: str) -> Running:
        """Progress of the job's leases, added up."""
        return self._running.get(job_id, Running())

    def of(self, job_id: str) -> list[ActiveLease]:
        return list(self._by_job.get(job_id, {}).values())

    def count(self, job_id: str) -> int:
        return len(self._by_job.get(job_id, {}))

    def has_of_job(self, job_id: str) -> bool:
        return job_id in self._by_job

    def over(self, now_s: float) -> list[str]:
        """Ids of the leases that were not renewed in time."""
        due: list[str] = []
        while self._ends and self._ends[0][0] <= now_s:
            _, lease_id = heapq.heappop(self._ends)
            if lease_id not in self:
                continue
            if self[lease_id].expires_at_s <= now_s:
                due.append(lease_id)
            else:
                heapq.heappush(self._ends, (self[lease_id].expires_at_s, lease_id))
        for lease_id in due:  # in force until the caller has freed it
            heapq.heappush(self._ends, (self[lease_id].expires_at_s, lease_id))
        return due

    def shift(self, by_s: float) -> None:
        """Move every end by ``by_s`` seconds."""
        for lease in self.values():
            lease.expires_at_s += by_s
            lease.leased_at_s += by_s
        self._ends = sorted((lease.expires_at_s, lease_id) for lease_id, lease in self.items())

    def check(self) -> None:
        """Invariants, for tests: a job's progress is the sum over its leases, and a model's leases are counted."""
        assert self.models == Counter(lease.model for lease in self.values())
        assert self._running.keys() == self._by_job.keys()
        for job_id, held in self._by_job.items():
            sums = Running(*map(sum, zip(*(lease.running for lease in held.values()), strict=True)))
            assert self._running[job_id] == sums

    def _changed(self, job_id: str, before: Running, after: Running) -> None:
        self._running[job_id] = Running(*(total - b + a for total, b, a in zip(self.running(job_id), before, after, strict=True)))


@dataclass(slots=True)
class JobRecord:
    """A job in memory: its row in the store, what is read from that row, and what the ledger knows of it since it was opened."""

    row: dict[str, Any]
    spec: JobSpec
    hint: SchedulingHint
    state: JobState  # as its row says
    rate: Rate = field(default_factory=Rate)
    began: float = 0.0  # `turn` at its last lease, from where it joined the other jobs of its model
    charged_tokens: float = 0.0  # of its last lease
    open_slices: int = 0  # that are not done
    rows_to_retry: int = 0  # failed rows in open slices of a retry: they are counted in its row, and asked again
    row_tokens: float | None = None  # mean of the rows that its leases computed; None: of none yet
    tokens_replaced: int = 0  # tokens of the rows that retries have replaced, since the ledger was opened
    granted: int = 0  # number of its last lease, counted over all jobs
    error_example: str | None = None  # how a row of it failed last
    standing: str | None = None
    is_stalled: bool = False  # as `standing` says: it makes no progress
    decided_at_s: float | None = None  # when the hint was last thought over; None: not yet
    stall: Stall = field(default_factory=Stall)  # as seen when the hint was thought over
    unread: str | None = None  # why its spec cannot be read; `spec` then holds what its row tells

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        unread = None
        try:
            spec = JobSpec.model_validate_json(row["spec"])
        except ValueError as error:
            spec, unread = _spec_of(row), of_other(f"job {row['id']}", error)
        return cls(row, spec, spec.hint(), JobState(row["state"]), unread=unread)

    def check_read(self) -> None:
        """Raise `StateError` where its spec could not be read: the job can be shown, cancelled and removed, and no more."""
        if self.unread is not None:
            raise StateError(self.unread)

    def take(self, values: Mapping[str, Any]) -> None:
        """Update the row with values that the store has written, and what is read from it."""
        self.row.update(values)
        self.state = JobState(self.row["state"])
        if "spec" in values:
            self.spec = JobSpec.model_validate_json(values["spec"])

    def add(self, counts: Iterable[int]) -> None:
        """Add to the counts of its row, in the order of `COUNTS`."""
        for name, count in zip(COUNTS, counts, strict=True):
            self.row[name] += count

    def serves(self, model: str) -> bool:
        """Whether replicas of ``model`` may work on it now."""
        return self.state in ACTIVE and self.spec.model == model and self.unread is None

    def is_over(self, now_s: float) -> bool:
        """Whether its deadline has passed and it has not ended. A job that is being cancelled ends as cancelled instead."""
        end_s = self.spec.deadline_at_s
        return end_s is not None and end_s <= now_s and self.state in (*ACTIVE, JobState.PAUSED)

    @property
    def turn(self) -> float:
        """Virtual counter: tokens leased over weight; the lowest of a model is next. The last lease counts by the weight that holds now."""
        return self.began + self.charged_tokens / self.hint.total_weight

    @property
    def rows_done(self) -> int:
        """Rows in published parts."""
        return int(self.row["rows_ok"] + self.row["rows_error"])

    @property
    def tokens_done(self) -> int:
        return int(self.row["prompt_tokens"] + self.row["output_tokens"])

    def view(self, rows_running: int, results: str, finish: Finish | None, lengths: tuple[LengthBand, ...]) -> JobView:
        """``rows_running``: rows done in slices that are leased; ``finish``: None where it has ended, waits, or nothing is known."""
        row = self.row
        kept = {name: row[name] for name in JobView.model_fields if name in row and name not in ("notes", "state")}
        if self.unread is not None and self.state not in ENDED:
            kept["message"] = self.unread
        return JobView(
            **kept,
            state=self.state,
            rows_running=rows_running,
            rows_to_retry=0 if self.state in ENDED else self.rows_to_retry,
            offline_tokens_per_s=self._tokens_per_s(),
            eta_s=0.0 if self.state in ENDED else finish.seconds if finish else None,
            eta_low_s=finish.low_s if finish else None,
            eta_high_s=finish.high_s if finish else None,
            weight=self.spec.weight,
            deadline_at_s=self.spec.deadline_at_s,
            boost=self.hint.boost,
            guaranteed_share=self.hint.share,
            standing=self.standing,
            response_lengths=lengths,
            results=results,
            notes=tuple(json.loads(row["notes"])),
        )

    def _tokens_per_s(self) -> float | None:
        """Over the last minute while it runs; over its whole life once it has ended."""
        row = self.row
        if self.state in ENDED and row["started_at_s"] is not None and row["ended_at_s"] > row["started_at_s"]:
            return float(self.tokens_done / (row["ended_at_s"] - row["started_at_s"]))
        return self.rate.tokens_per_s


def tokens_per_row(record: JobRecord, others: Iterable[JobRecord]) -> float:
    """Mean tokens of a row of this job; before it has rows done, of a row of ``others``; 1 where neither is known."""
    known = [one for one in ((record,) if record.tokens_done and record.rows_done else others) if one.tokens_done and one.rows_done]
    return sum(one.tokens_done for one in known) / sum(one.rows_done for one in known) if known else 1.0


def _spec_of(row: Mapping[str, Any]) -> JobSpec:
    """What a job's row tells of its spec: enough to show the job, and never to run it."""
    return JobSpec(
        id=row["id"],
        key=row["key"],
        source=SourceSpec(uri=row["source"]),
        fingerprint="",
        task=Task(name=row["task"], prompt="{text}"),
        column=None,
        keep=(),
        model=row["model"],
        rows_total=row["rows_total"],
        created_at_s=row["created_at_s"],
        owner=row["owner"],
    )
