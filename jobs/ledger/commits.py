"""What a published part changes: its slice is done or kept, its counts are its job's, its lease ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.ledger.record import NO_COUNTS, JobRecord
from jobs.ledger.steal import Stealing
from jobs.spec import COUNTS, PartStats, Spent
from jobs.states import ACTIVE, JobState, SliceState

RECOMPUTED = COUNTS.index("rows_recomputed")


class Commits(Stealing):
    """The part of a `jobs.ledger.ledger.Ledger` in which leases end."""

    def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats, now_s: float) -> bool:
        """A part has been published. False when the lease had been lost meanwhile, or the part is to be looked at again (`doubt`).

        Safe to repeat: a ledger may die between the change and the answer.
        A lost lease's part may still be the one that lies there: the last rename wins, and every edition holds the same rows. So its
        counts are taken over where the slice is done in the same generation.
        """
        record = self._record(job_id)
        lease = self._leases.get(lease_id)
        if lease is not None and lease.is_doubted:
            self._free([lease_id], now_s)
            return False
        if lease is None:
            old, counted_by = self._counted(record, slice_id, stats.generation)
            if old is not None and counted_by == lease_id and _but_recomputed(old) == _but_recomputed(_counts_of(stats)):
                return True
        else:
            old = lease.kept
        if old is None:
            return False
        goes_on = record.state in ACTIVE and record.row["message"] is not None  # whatever it waited for
        with self._store.transaction():
            added = self._count("finish_slice", record, slice_id, stats, old, now_s)
            self._forecast.write_due(now_s)
            if goes_on:
                self._run("set_message", [None, record.spec.id])
        self._account(record, added, stats, now_s)
        if goes_on:
            record.row["message"] = None
        if lease is not None:
            record.open_slices -= 1
            if lease.generation == 0:
                self._forecast.committed(record, stats, now_s)
            del self._leases[lease_id]
        record.error_example = stats.error_example or record.error_example
        self._forecast.sample(record, self._leases.of(job_id), now_s)
        self._settle(record, now_s)
        self._stop_failing(record, now_s)
        return lease is not None

    def _counted(self, record: JobRecord, slice_id: int, generation: int) -> tuple[tuple[int, ...] | None, str | None]:
        """What the slice counts for, where it is done in this generation, and the lease that did it."""
        ((state, done_in, lease_id, *counts),) = self._run("slice_stats", [record.spec.id, slice_id])
        return (tuple(counts), lease_id) if state == SliceState.DONE and done_in == generation else (None, None)

    def _count(self, statement: str, record: JobRecord, slice_id: int, stats: PartStats, old: Sequence[int], now_s: float) -> list[int]:
        """Write what the slice's part now holds, in place of ``old``. Returns what that adds to the job's counts."""
        new = list(_counts_of(stats))
        new[RECOMPUTED] += old[RECOMPUTED]  # work done twice stays done twice, whatever the part now holds
        self._run(statement, [*new, record.spec.id, slice_id])
        added = [n - o for n, o in zip(new, old, strict=True)]
        self._run("add_counts", [*added, record.spec.id])
        by_name = dict(zip(COUNTS, added, strict=True))
        rows, tokens = by_name["rows_ok"] + by_name["rows_error"], {name: by_name[name] for name in ("prompt_tokens", "output_tokens")}
        self._usage.add(Spent(owner=record.spec.owner, kind="batch", requests=rows, **tokens), now_s)
        return added

    def _account(self, record: JobRecord, added: Sequence[int], stats: PartStats, now_s: float) -> None:
        """The store has taken what `_count` wrote."""
        record.add(added)
        by_name = dict(zip(COUNTS, added, strict=True))
        self._counts.committed(record.spec.model, by_name)
        self._forecast.account(record, by_name, stats, now_s)

    def holds(self, lease_id: str) -> bool:
        """Whether the lease is in force: nobody else works on its slice."""
        return lease_id in self._leases

    def keep(self, lease_id: str, stats: PartStats, now_s: float) -> bool:
        """Give a lease back whose part holds the rows done so far. The others are done when the slice is leased again.

        False where the lease had been lost: that part may have covered a whole one, and its slice is to be looked at again (`doubt`).
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        record = self._jobs[lease.job_id]
        with self._store.transaction():
            added = self._count("keep_slice", record, lease.slice_id, stats, lease.kept, now_s)
        self._account(record, added, stats, now_s)
        record.error_example = stats.error_example or record.error_example
        self._freed([lease_id], now_s)
        return True

    def doubt(self, job_id: str, slice_id: int, now_s: float) -> None:
        """A part of a few rows may have covered the slice's whole one: look again, also where that was committed and its job has ended.

        The next holder takes the part as it is where it is whole, and computes the slice's rows otherwise.
        """
        record = self._record(job_id)
        for lease in self._leases.of(job_id):
            lease.is_doubted = lease.is_doubted or lease.slice_id == slice_id
        ((state, generation, _, *counts),) = self._run("slice_stats", [job_id, slice_id])
        if state != SliceState.DONE:
            return
        less = [-one for one in counts]
        values: dict[str, Any] = {}
        with self._store.transaction():
            self._run("restore_slice", [SliceState.PENDING, generation, job_id, slice_id])
            self._run("count_slice", [*NO_COUNTS, job_id, slice_id])
            self._run("add_counts", [*less, job_id])
            if record.state is JobState.COMPLETED:
                values = self._write_state(record, JobState.QUEUED, now_s, None)
        self._took(record, values)
        record.add(less)
        record.open_slices += 1
        self._pending[job_id] = None

    def release(self, lease_id: str, now_s: float) -> None:
        """Give a lease back undone. Unknown ones are ignored: they were lost before."""
        if lease_id in self._leases:
            self._free([lease_id], now_s)

    def _free(self, lease_ids: Sequence[str], now_s: float) -> None:
        with self._store.transaction(durable=False):
            for lease_id in lease_ids:
                self._run("free_slice", [self._leases[lease_id].job_id, self._leases[lease_id].slice_id])
        self._freed(lease_ids, now_s)

    def _freed(self, lease_ids: Sequence[str], now_s: float) -> None:
        job_ids = dict.fromkeys(self._leases[lease_id].job_id for lease_id in lease_ids)
        for lease_id in lease_ids:
            del self._leases[lease_id]
        self._pending |= job_ids
        self._unsettled |= job_ids
        for job_id in job_ids:
            self._settle(self._jobs[job_id], now_s)

    def held(self, job_id: str) -> int:
        """How many of the job's slices are leased now: an ended job's parts are all there once it is 0."""
        return self._leases.count(job_id)

    def _has_pending(self, job_id: str) -> bool:
        return self._jobs[job_id].open_slices > self._leases.count(job_id)


def _counts_of(stats: PartStats) -> tuple[int, ...]:
    return tuple(getattr(stats, name) for name in COUNTS)


def _but_recomputed(counts: Sequence[int]) -> tuple[int, ...]:
    """The ledger adds those of earlier parts to that one."""
    return (*counts[:RECOMPUTED], *counts[RECOMPUTED + 1 :])
