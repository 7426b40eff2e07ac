"""Work stealing at the tail of a job: a replica asks, no slice is pending, and the slowest lease gives back half of its unbegun rows.

The holder decides what is unbegun: the ledger asks it (`wanted`), it promises not to begin those rows, then it says where its slice ends
(`split`). The rest becomes a slice of its own. Only a slice in its first lease is split: an earlier holder, thought dead,
would have the whole slice, and could publish a part that holds the rows of both.
"""

from __future__ import annotations

from jobs.forecast.tail import TailLease, slowest
from jobs.ledger.book import JobBook
from jobs.ledger.counts import LedgerCount
from jobs.ledger.record import ActiveLease
from jobs.ledger.splits import Split, note_split
from jobs.states import ACTIVE

LOOK_S = 0.5


class Stealing:
    """The component of a `jobs.ledger.ledger.Ledger` that splits leased slices. `wanted` and `split` are documented there."""

    def __init__(self, book: JobBook) -> None:
        self._book = book
        self._wanted: dict[str, set[str]] = {}  # by holder, the leases that it is asked to split
        self._idle: dict[str, set[str]] = {}  # by model, the replicas that found nothing since the last look
        self._look_at_s: dict[str, float] = {}  # by model, when to look again: with 1,000 replicas a look takes a while

    def wanted(self, holder: str) -> list[str]:
        return sorted(self._wanted.pop(holder, ()))

    def split(self, lease_id: str, keep_rows: int) -> bool:
        book = self._book
        lease = book.leases.get(lease_id)
        if lease is None or not lease.may_split or not 0 < keep_rows <= lease.row_count:
            return False
        if keep_rows == lease.row_count:
            return True
        self._cut(lease, keep_rows)
        record = book.jobs[lease.job_id]
        record.open_slices += 1
        book.update_pending(record)
        book.counts.add(record.spec.model, LedgerCount.SPLIT)
        return True

    def _cut(self, lease: ActiveLease, keep_rows: int) -> None:
        book = self._book
        place = [lease.job_id, lease.slice_id]
        rest = lease.row_count - keep_rows
        ((new_id,),) = book.run("next_slice", [lease.job_id])
        if book.keeps_jobs:  # before the change: a part that does not fit its slice is noticed, a lost row would not be
            note_split(book.results_root / lease.job_id, Split(lease.slice_id, keep_rows, new_id), book.mirror)
        with book.store.transaction():  # the note is outside it: a slow storage would keep the database's row locked
            book.run("split_slice", [new_id, keep_rows, keep_rows, rest, *place])
            book.run("shrink_slice", [keep_rows, *place])
        lease.row_count, lease.rows_unbegun = keep_rows, max(0, lease.rows_unbegun - rest)

    def want(self, asker: str, model: str, now_s: float) -> None:
        """``asker`` found nothing to lease. Once in `LOOK_S`, as many of the slowest leases as idle replicas are asked to split."""
        self._idle.setdefault(model, set()).add(asker)
        if now_s < self._look_at_s.get(model, 0.0):
            return
        self._look_at_s[model] = now_s + LOOK_S
        idle = self._idle.pop(model)
        leases = [
            TailLease(lease_id, lease.rows_unbegun, lease.rows_done, now_s - lease.leased_at_s)
            for lease_id, lease in self._book.leases.items()
            if lease.may_split and lease.rows_unbegun and lease.holder not in idle and self._runs(lease, model)
        ]
        for lease_id in slowest(leases, len(idle)):
            self._wanted.setdefault(self._book.leases[lease_id].holder, set()).add(lease_id)

    def clock_set(self) -> None:
        """The clock was set: look at once."""
        self._look_at_s.clear()

    def _runs(self, lease: ActiveLease, model: str) -> bool:
        record = self._book.jobs[lease.job_id]
        return record.state in ACTIVE and record.spec.model == model
