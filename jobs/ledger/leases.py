"""Leases in force: who holds which slice, until when, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.spec import LeaseProgress


@dataclass(slots=True)
class ActiveLease:
    """A lease in force. The counts are its holder's, of the last heartbeat; the kept ones are of rows in the slice's part already."""

    job_id: str
    slice_id: int
    holder: str
    expires_at_s: float
    rows_kept: int = 0
    errors_kept: int = 0
    rows_done: int = 0
    rows_error: int = 0
    tokens_done: int = 0

    @property
    def rows_running(self) -> int:
        """Rows done that are in no part yet."""
        return max(0, self.rows_done - self.rows_kept)

    @property
    def errors_running(self) -> int:
        return max(0, self.rows_error - self.errors_kept)

    def renew(self, item: LeaseProgress, expires_at_s: float) -> None:
        self.expires_at_s = expires_at_s
        self.rows_done, self.rows_error, self.tokens_done = item.rows_done, item.rows_error, item.tokens_done


class ActiveLeases(dict[str, ActiveLease]):
    """By lease id."""

    def of(self, job_id: str) -> list[ActiveLease]:
        return [lease for lease in self.values() if lease.job_id == job_id]

    def holds(self, job_id: str) -> bool:
        return any(lease.job_id == job_id for lease in self.values())

    def over(self, now_s: float) -> list[str]:
        """Ids of the leases that were not renewed in time."""
        return [lease_id for lease_id, lease in self.items() if lease.expires_at_s <= now_s]
