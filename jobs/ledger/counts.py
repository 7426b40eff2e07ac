"""What a ledger has done since it was opened, by model: for metrics, whose readers expect counters to begin anew with a process.

And what it shows: its current jobs, and its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from jobs.errors import NotFoundError
from jobs.ledger.record import ActiveLeases, JobRecord
from jobs.ledger.store.contract import Store
from jobs.ledger.store.statements import TABLES
from jobs.spec import JobView
from jobs.states import ENDED, JobState

OWN_SHOWN, OWNERS_SHOWN = 10, 200  # jobs that each owner sees at least, whatever others made; and those of all owners


class LedgerCount(StrEnum):
    LEASED = "leases_granted"
    LOST = "leases_lost"  # not renewed in time: their holder died, hung, or was cut off
    SPLIT = "leases_split"  # whose holder gave rows back for another replica
    ROWS_OK = "rows_ok"
    ROWS_ERROR = "rows_error"
    ROWS_RECOMPUTED = "rows_recomputed"


class LedgerCounts:
    """Used by the one thread of the ledger."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, model: str, what: LedgerCount, by: int = 1) -> None:
        """Add to a count, which never falls: a part that replaces an older one adds only what it has more."""
        self._counts[model, what] += max(0, by)

    def committed(self, model: str, added: Mapping[str, int]) -> None:
        """``added``: by the names of `jobs.spec.COUNTS`."""
        for what in (LedgerCount.ROWS_OK, LedgerCount.ROWS_ERROR, LedgerCount.ROWS_RECOMPUTED):
            self.add(model, what, added[what])

    def of(self, model: str) -> dict[str, int]:
        return {what.value: self._counts[model, what] for what in LedgerCount}


class JobsNow(NamedTuple):
    """The current jobs. ``states``: number of jobs by model and state. ``older``: number of jobs that ``views`` leaves out.

    ``owned``: number of jobs by owner; those without one are left out.
    """

    views: list[JobView]
    states: Mapping[tuple[str, JobState], int]
    older: int
    owned: Mapping[str, int] = {}


def made(record: JobRecord) -> tuple[float, str]:
    """By what jobs are ordered: when they were made."""
    return record.row["created_at_s"], record.row["id"]


def by_work(record: JobRecord) -> tuple[bool, float, str]:
    """By what jobs that have not ended are ordered: those that wait, then those that run or are being cancelled; each by `made`."""
    return record.state not in (JobState.QUEUED, JobState.PAUSED), *made(record)


def listed(records: Iterable[JobRecord], ended: int, active: int | None) -> list[JobRecord]:
    """The newest ``ended`` jobs that have ended, and of the others the last ``active`` in the order `by_work`; None: all. Newest first.

    An owner's jobs are among them whatever others made: see `_last`.
    """
    over, going = list[JobRecord](), list[JobRecord]()
    for record in records:
        (over if record.state in ENDED else going).append(record)
    return sorted([*_last(over, ended, made), *(going if active is None else _last(going, active, by_work))], key=made, reverse=True)


def _last(records: Sequence[JobRecord], count: int, order: Callable[[JobRecord], Any]) -> list[JobRecord]:
    """The last ``count``, and of each owner the last up to `OWN_SHOWN` and ``count``: of these the last `OWNERS_SHOWN`.

    Looks no further than it must, because a page that is open asks each second.
    """
    if not count:
        return []
    most = min(count, OWN_SHOWN)
    left = min(OWNERS_SHOWN, sum(min(most, jobs) for jobs in Counter(record.spec.owner for record in records).values()))
    found, of_owner = list[JobRecord](), Counter[str | None]()
    for place, record in enumerate(sorted(records, key=order, reverse=True)):
        if place >= count and not left:
            break
        owner = record.spec.owner
        is_own = left > 0 and of_owner[owner] < most
        of_owner[owner] += 1
        left -= is_own
        if is_own or place < count:
            found.append(record)
    return found


def owned(records: Iterable[JobRecord]) -> Mapping[str, int]:
    """Number of jobs by owner."""
    return Counter(record.spec.owner for record in records if record.spec.owner is not None)


def jobs_now(records: Collection[JobRecord], view: Callable[[JobRecord], JobView], ended: int, active: int | None) -> JobsNow:
    """``records``: of all jobs; ``view`` makes what is shown of one, which takes long. ``ended``, ``active``: as in `listed`."""
    views = [view(record) for record in listed(records, ended, active)]
    states = Counter((record.spec.model, record.state) for record in records)
    return JobsNow(views, states, len(records) - len(views), owned(records))


def table_now(store: Store, leases: ActiveLeases, name: str, without: tuple[str, ...]) -> pa.Table:
    """A table of the ledger, with the ends of the leases as they are now. Raises `NotFoundError` for an unknown one."""
    if name not in TABLES:
        raise NotFoundError(f"unknown ledger table {name!r}; there are {', '.join(TABLES)}")
    table = store.arrow(name, without)
    if name == "leases":
        ends = {lease_id: lease.expires_at_s for lease_id, lease in leases.items()}
        column = pa.array([ends.get(lease_id) for lease_id in table.column("lease_id").to_pylist()], pa.float64())
        table = table.set_column(table.column_names.index("expires_at_s"), "expires_at_s", column)
    return table
