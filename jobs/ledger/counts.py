"""What a ledger has done since it was opened, by model: for metrics, whose readers expect counters to begin anew with a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from jobs.spec import JobView
from jobs.states import JobState


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
    """The current jobs. ``states``: number of jobs by model and state. ``older``: number of ended jobs that ``views`` leaves out."""

    views: list[JobView]
    states: Mapping[tuple[str, JobState], int]
    older: int
