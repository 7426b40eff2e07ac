"""The tail of a job: nothing is left to lease, and one slow replica still has rows that it has not begun."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

MIN_LEFT_S = 2.0  # what is over sooner is not worth another lease


@dataclass(frozen=True, slots=True)
class TailLease:
    """A lease that may be split. ``age_s``: since it was given; the rows are of its last heartbeat."""

    lease_id: str
    rows_unbegun: int
    rows_done: int
    age_s: float

    @property
    def left_s(self) -> float:
        """Seconds until its unbegun rows are done at its own pace. Before any row is done, the first counts as just done."""
        return self.rows_unbegun * self.age_s / max(1, self.rows_done)


def slowest(leases: Iterable[TailLease], count: int) -> list[str]:
    """Up to ``count`` leases whose unbegun rows would be done last, the slowest first; none below `MIN_LEFT_S`."""
    worth = (lease for lease in leases if lease.left_s >= MIN_LEFT_S)
    return [lease.lease_id for lease in heapq.nlargest(count, worth, key=lambda lease: lease.left_s)]
