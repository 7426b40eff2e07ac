"""Grants, renews and expires leases, and knows the living replicas and which of them cannot read a job's source."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from jobs.errors import ReopenError
from jobs.ledger.book import JobBook
from jobs.ledger.counts import LedgerCount
from jobs.ledger.record import ActiveLease, JobRecord, tokens_per_row
from jobs.ledger.steal import Stealing
from jobs.spec import Lease, LeaseProgress, SliceSpec
from jobs.states import ACTIVE, JobState

REFUSED_S = 60.0


@dataclass(slots=True)
class _Replica:
    """``seen_s``: when it last asked or reported anything. ``refused``: by job, when."""

    seen_s: float
    model: str | None = None
    refused: dict[str, float] = field(default_factory=dict)

    def refuses(self, now_s: float) -> set[str]:
        return {job_id for job_id, at_s in self.refused.items() if now_s - at_s < REFUSED_S}


class KnownReplicas:
    """The living replicas, and which of them cannot read a job's source, where others may: one machine may lack a mount or a right.

    A refusal holds for `REFUSED_S`; then the replica is given the job again.
    """

    def __init__(self, alive_s: float) -> None:
        """``alive_s``: a replica that was not heard of for so long is gone."""
        self._alive_s = alive_s
        self._replicas: dict[str, _Replica] = {}

    def saw(self, holder: str, now_s: float, model: str | None = None) -> None:
        if holder not in self._replicas:
            self._drop_gone(now_s)
        known = self._replicas.setdefault(holder, _Replica(now_s))
        known.seen_s = now_s
        known.model = known.model if model is None else model

    def refuse(self, job_id: str, holder: str, now_s: float) -> None:
        known = self._replicas.setdefault(holder, _Replica(now_s))
        held = known.refuses(now_s)
        known.refused = {one: at_s for one, at_s in known.refused.items() if one in held} | {job_id: now_s}

    def forget(self, job_id: str) -> None:
        for known in self._replicas.values():
            known.refused.pop(job_id, None)

    def refused_by(self, holder: str, now_s: float) -> set[str]:
        """The jobs that ``holder`` refuses now."""
        known = self._replicas.get(holder)
        return known.refuses(now_s) if known is not None else set()

    def is_left(self, job_id: str, model: str, now_s: float) -> bool:
        """Whether a living replica of ``model`` has not refused the job."""
        self._drop_gone(now_s)
        return any(known.model == model and job_id not in known.refuses(now_s) for known in self._replicas.values())

    def living(self, model: str, asker: str | None, now_s: float) -> int:
        """Number of living replicas of ``model``, with ``asker``, which may not have been heard of yet. 0 while none is known."""
        self._drop_gone(now_s)
        found = {holder for holder, known in self._replicas.items() if known.model == model}
        return len(found | {asker}) if found and asker is not None else len(found)

    def shift(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds, or no replica was heard for so long."""
        for known in self._replicas.values():
            known.seen_s += by_s
            known.refused = {job_id: at_s + by_s for job_id, at_s in known.refused.items()}

    def _drop_gone(self, now_s: float) -> None:
        self._replicas = {holder: known for holder, known in self._replicas.items() if now_s - known.seen_s < self._alive_s}


class Leasing:
    """The component of a `jobs.ledger.ledger.Ledger` that leases slices. Its public methods are documented there."""

    def __init__(self, book: JobBook, stealing: Stealing, *, lease_s: float, now_s: float, new_server: bool) -> None:
        """Earlier leases get one more term of ``lease_s``; with ``new_server`` all are freed, since its replicas cannot hold them."""
        self._book, self._stealing, self._lease_s = book, stealing, lease_s
        self._turns = count(1)
        self._replicas = KnownReplicas(lease_s)
        self._late: dict[str, set[str]] = {}  # by holder, jobs of which a slice waits for its source: it gets no other of them
        self._pass: dict[str, float] = {}  # by model, the lowest turn at the last lease; an idle job cannot save up turns
        if new_server:
            book.run("free_all")
        for job_id, slice_id, lease_id, holder, generation, row_count, attempt, *kept in book.run("leased_slices"):
            model = book.jobs[job_id].spec.model
            lease = ActiveLease(
                job_id, model, slice_id, holder, now_s + lease_s, generation, tuple(kept), row_count=row_count, leased_at_s=now_s
            )
            book.leases[lease_id] = lease.first_of(attempt)
            self._replicas.saw(holder, now_s, model)  # a replica with enough rows asks for no lease
        for record in book.jobs.values():
            book.update_pending(record)
            book.settle(record, now_s)

    def lease(self, holder: str, model: str, now_s: float) -> Lease | None:
        self.expire(now_s)
        self._replicas.saw(holder, now_s, model)
        refused = self._replicas.refused_by(holder, now_s) | self._late.get(holder, set())
        waiting = (record for job_id in self._book.pending if (record := self._book.jobs[job_id]).serves(model) and job_id not in refused)
        first = min(waiting, key=lambda e: (e.turn, e.granted, e.row["created_at_s"]), default=None)
        if first is None:
            if not refused:  # else the split rows might be of a job that it cannot read, or reads slowly
                self._stealing.want(holder, model, now_s)
            return None
        others = (one for one in self._book.active.values() if one.serves(model))
        return self._grant(first, holder, now_s, tokens_per_row(first, others))

    def _grant(self, record: JobRecord, holder: str, now_s: float, row_tokens: float) -> Lease:
        book = self._book
        job_id, lease_id, expires_at_s = record.spec.id, uuid.uuid4().hex[:16], now_s + self._lease_s
        begun: dict[str, Any] = {}
        with book.store.transaction(durable=False):  # a power cut may undo it, but also ends its holder
            taken = book.run("take_slice", [lease_id, holder, expires_at_s, job_id, job_id])
            if not taken:  # a call was interrupted after the store had its change, and before the memory had it
                raise ReopenError(f"the ledger has no free slice of {job_id} where it remembers one; it is opened again")
            ((slice_id, group_index, offset, row_start, row_count, generation, attempt, *kept),) = taken
            if record.state is JobState.QUEUED:
                begun = book.write_state(record, JobState.RUNNING, now_s, record.row["message"])
        book.took(record, begun)
        model = record.spec.model
        lease = ActiveLease(job_id, model, slice_id, holder, expires_at_s, generation, tuple(kept), row_count=row_count, leased_at_s=now_s)
        book.leases[lease_id] = lease.first_of(attempt)
        book.update_pending(record)
        record.began = self._pass[model] = max(self._pass.get(model, 0.0), record.turn)
        record.charged_tokens = row_count * row_tokens
        record.granted = next(self._turns)
        book.counts.add(model, LedgerCount.LEASED)
        part = SliceSpec(slice_id=slice_id, group_index=group_index, offset=offset, row_start=row_start, row_count=row_count)
        return Lease(lease_id=lease_id, job=record.spec, slice=part, generation=generation, attempt=attempt, expires_at_s=expires_at_s)

    def refuse(self, lease_id: str, message: str, now_s: float) -> None:
        book = self._book
        lease = book.leases.get(lease_id)
        if lease is None or (record := book.jobs[lease.job_id]).state not in ACTIVE:
            return
        self._replicas.refuse(lease.job_id, lease.holder, now_s)
        if self._replicas.is_left(lease.job_id, record.spec.model, now_s):
            book.say(record, f"{lease.holder} cannot read the source, others go on: {message}")
        else:
            self._replicas.forget(lease.job_id)  # whoever resumes the job has repaired the cause
            book.fail(record, message, now_s)

    def living(self, model: str, asker: str | None, now_s: float) -> int:
        return self._replicas.living(model, asker, now_s)

    def heartbeat(self, holder: str, progress: Sequence[LeaseProgress], now_s: float) -> list[str]:
        book = self._book
        drop: list[str] = []
        at_work: dict[str, JobRecord] = {}
        late = set[str]()
        for item in progress:
            lease = book.leases.get(item.lease_id)
            if lease is None or lease.holder != holder or lease.job_id not in book.active:
                drop.append(item.lease_id)
                continue
            book.leases.renew(item, now_s + self._lease_s)
            record = at_work[lease.job_id] = book.active[lease.job_id]
            record.error_example = item.error or record.error_example
            late |= {lease.job_id} if item.is_late else set()
        self._late.pop(holder, None)
        if late:
            self._late[holder] = late
        self._replicas.saw(holder, now_s, next((record.spec.model for record in at_work.values()), None))
        for record in at_work.values():
            book.forecast.sample(record, now_s)
            book.stop_failing(record, now_s)
        self.expire(now_s)
        return drop

    def expire(self, now_s: float) -> int:
        book = self._book
        book.settle_left(now_s)
        book.expire_jobs(now_s)
        over = book.leases.over(now_s)
        for lease_id in over:
            lease = book.leases[lease_id]
            book.counts.add(book.jobs[lease.job_id].spec.model, LedgerCount.LOST)
            self._late.pop(lease.holder, None)
        if over:
            book.free(over, now_s)
        book.forecast.idle(now_s)
        return len(over)

    def clock_set(self, by_s: float) -> None:
        self._book.leases.shift(by_s)
        self._replicas.shift(by_s)
        self._stealing.clock_set()
        self._book.forecast.shift(self._book.jobs.values(), by_s)

    def was_busy(self, for_s: float) -> None:
        self._book.leases.shift(for_s)
        self._replicas.shift(for_s)
