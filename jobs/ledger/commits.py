"""What a published part changes: its slice is done or kept, its counts are added to its job's, its lease ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.ledger.book import JobBook
from jobs.ledger.record import NO_COUNTS, JobRecord
from jobs.spec import COUNTS, PartStats, Spent
from jobs.states import ACTIVE, JobState, SliceState
from jobs.usage import NONE_USED, Usage

ERROR, RECOMPUTED = COUNTS.index("rows_error"), COUNTS.index("rows_recomputed")


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a part changes, in the order of `COUNTS`. ``added``: to the counts of its job. ``new``: those not accounted before."""

    added: list[int]
    new: list[int]
    spent: Spent


class Commits:
    """The component of a `jobs.ledger.ledger.Ledger` that records published parts. Its public methods are documented there.

    The tables ``usage``, ``harvested`` and ``harvest`` never fall: a row counts once, its tokens each time that a part brought them.
    So tokens of failed rows stay in the hour in which they were computed, and those of a retry come on top. One exception counts twice:
    the part of a slice that was reopened (`reopen_slice`), if the ledger itself is opened again before the slice's next part is recorded.
    """

    def __init__(self, book: JobBook) -> None:
        self._book = book
        # Counts that slices lost by `reopen_slice` and that are accounted; in memory alone.
        self._reopened: dict[tuple[str, int], list[int]] = {}

    def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats, now_s: float) -> bool:
        """The part of a lost lease may still be the one on disk: the last rename wins, and every edition holds the same rows.

        So its counts replace those of the slice where that is done in the same generation. A part with another number of rows than its
        slice is refused: the slice's next holder puts it aside.
        """
        book = self._book
        record = book.record(job_id)
        lease = book.leases.get(lease_id)
        if lease is not None and (lease.is_part_doubtful or stats.rows_ok + stats.rows_error != lease.row_count):
            book.free([lease_id], now_s)
            return False
        if lease is None:
            old, counted_by = self._counted(record, slice_id, stats.generation)
            if old is not None and counted_by == lease_id and _but_recomputed(old) == _but_recomputed(_counts_of(stats)):
                return True
        else:
            old = lease.kept
        if old is None:
            return False
        # Rows that had failed and are computed again count as new: they were judged before, unless this generation kept them.
        again = min(lease.kept[ERROR], record.row["errors_judged"]) if lease is not None and lease.generation else 0
        judged = {name: record.row[name] - again for name in ("rows_judged", "errors_judged")}
        goes_on = record.state in ACTIVE and record.row["message"] is not None  # the job works again, whatever it waited for
        with book.forecast.transaction(now_s, learnt=book.forecast.is_due(now_s)):
            counted = self._count("finish_slice", record, slice_id, stats, old, now_s, replaces=lease is not None)
            if again:
                book.run("set_judged", [*judged.values(), record.spec.id])
            if goes_on:
                book.run("set_message", [None, record.spec.id])
        self._account(record, slice_id, counted, stats, now_s)
        record.row.update(judged)
        if goes_on:
            record.row["message"] = None
        if lease is not None:
            record.open_slices -= 1
            if lease.generation == 0:
                book.forecast.committed(record, stats)
            else:
                record.rows_to_retry -= lease.kept[ERROR]
                record.tokens_replaced += stats.replaced.prompt_tokens + stats.replaced.output_tokens
            del book.leases[lease_id]
        record.error_example = stats.error_example or record.error_example
        book.forecast.sample(record, now_s)
        book.settle(record, now_s)
        book.stop_failing(record, now_s)
        return lease is not None

    def _counted(self, record: JobRecord, slice_id: int, generation: int) -> tuple[tuple[int, ...] | None, str | None]:
        """Counts of the slice and the lease that committed them, where it is done in this generation; else None twice."""
        ((state, done_in, lease_id, *counts),) = self._book.run("slice_stats", [record.spec.id, slice_id])
        return (tuple(counts), lease_id) if state == SliceState.DONE and done_in == generation else (None, None)

    def _count(
        self,
        statement: str,
        record: JobRecord,
        slice_id: int,
        stats: PartStats,
        old: Sequence[int],
        now_s: float,
        *,
        replaces: bool = False,
    ) -> _Counted:
        """Replace the slice's counts, ``old``, by those of its new part. ``replaces``: it is the first part with its retried rows."""
        counts = list(_counts_of(stats))
        counts[RECOMPUTED] += old[RECOMPUTED]  # work done twice stays done twice, whatever the part now holds
        self._book.run(statement, [*counts, record.spec.id, slice_id])
        added = [n - o for n, o in zip(counts, old, strict=True)]
        self._book.run("add_counts", [*added, record.spec.id])
        new = [a - b for a, b in zip(added, self._reopened.get((record.spec.id, slice_id), NO_COUNTS), strict=True)]
        spent = _spent(record, dict(zip(COUNTS, new, strict=True)), stats.replaced if replaces else NONE_USED)
        self._book.usage.add(spent, now_s)
        return _Counted(added, new, spent)

    def _account(self, record: JobRecord, slice_id: int, counted: _Counted, stats: PartStats, now_s: float) -> None:
        """Update memory, after the store has committed what `_count` wrote."""
        record.add(counted.added)
        if self._reopened.pop((record.spec.id, slice_id), None) and (left := [max(0, -one) for one in counted.new]) and any(left):
            self._reopened[record.spec.id, slice_id] = left
        self._book.counts.committed(record.spec.model, dict(zip(COUNTS, counted.new, strict=True)))
        self._book.forecast.account(record, counted.spent, stats, now_s)

    def keep(self, lease_id: str, stats: PartStats, now_s: float) -> bool:
        book = self._book
        lease = book.leases.get(lease_id)
        if lease is None:
            return False
        record = book.jobs[lease.job_id]
        with book.store.transaction():
            counted = self._count("keep_slice", record, lease.slice_id, stats, lease.kept, now_s)
        self._account(record, lease.slice_id, counted, stats, now_s)
        record.rows_to_retry += counted.added[ERROR] if lease.generation else 0
        record.error_example = stats.error_example or record.error_example
        book.freed([lease_id], now_s)
        return True

    def reopen_slice(self, job_id: str, slice_id: int, now_s: float) -> None:
        """Open the slice again. Its next holder keeps the part if that is complete, and computes the rows otherwise."""
        book = self._book
        record = book.record(job_id)
        for lease in book.leases.of(job_id):
            lease.is_part_doubtful = lease.is_part_doubtful or lease.slice_id == slice_id
        ((state, generation, _, *counts),) = book.run("slice_stats", [job_id, slice_id])
        if state != SliceState.DONE:
            return
        less = [-one for one in counts]
        values: dict[str, Any] = {}
        with book.store.transaction():
            book.run("restore_slice", [SliceState.PENDING, generation, job_id, slice_id])
            book.run("count_slice", [*NO_COUNTS, job_id, slice_id])
            book.run("add_counts", [*less, job_id])
            if record.state is JobState.COMPLETED:
                values = book.write_state(record, JobState.QUEUED, now_s, None)
        book.took(record, values)
        record.add(less)
        left = self._reopened.get((job_id, slice_id), NO_COUNTS)
        self._reopened[job_id, slice_id] = [a + b for a, b in zip(left, counts, strict=True)]
        record.open_slices += 1
        book.update_pending(record)


def _spent(record: JobRecord, new: Mapping[str, int], replaced: Usage) -> Spent:
    """What is accounted for a part that holds so much more than was accounted. ``replaced``: usage that was, and that it holds no more."""
    return Spent(
        owner=record.spec.owner,
        kind="batch",
        requests=max(0, new["rows_ok"] + new["rows_error"]),
        prompt_tokens=max(0, new["prompt_tokens"] + replaced.prompt_tokens),
        output_tokens=max(0, new["output_tokens"] + replaced.output_tokens),
    )


def _counts_of(stats: PartStats) -> tuple[int, ...]:
    return tuple(getattr(stats, name) for name in COUNTS)


def _but_recomputed(counts: Sequence[int]) -> tuple[int, ...]:
    """The counts without ``rows_recomputed``, to which the ledger adds that of earlier parts."""
    return (*counts[:RECOMPUTED], *counts[RECOMPUTED + 1 :])
