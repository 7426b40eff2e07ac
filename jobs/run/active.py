"""A slice in work: how far it is, and what the ledger is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from jobs.result import Row
from jobs.run.feed import Feed
from jobs.spec import Lease, LeaseProgress


@dataclass(slots=True)
class ActiveSlice:
    """A lease in work."""

    lease: Lease
    task: asyncio.Task[None] | None = None
    begun: bool = False  # a task that is cancelled before its first step runs nothing, not even what gives the lease back
    dropped: bool = False  # the ledger said so
    publishing: bool = False  # it publishes the rows done, then ends by itself
    rows_waiting: int = 0
    rows_done: int = 0
    rows_found: int = 0  # of `rows_done`, those done before this lease
    rows_error: int = 0
    error: str | None = None
    is_late: bool = False  # its source takes long: its rows are not waiting for the engine
    tokens_done: int = 0
    feed: Feed = field(default_factory=Feed)

    def progress(self) -> LeaseProgress:
        return LeaseProgress(
            lease_id=self.lease.lease_id,
            rows_done=self.rows_done,
            rows_found=self.rows_found,
            rows_error=self.rows_error,
            error=self.error,
            tokens_done=self.tokens_done,
            rows_unbegun=self.feed.rows_unbegun,
            is_late=self.is_late,
        )

    @property
    def is_ending(self) -> bool:
        """Whether no more of its rows begin: it is published, or was dropped."""
        return self.publishing or self.dropped

    def drop(self) -> None:
        """Stop work on the slice, because the ledger wants it back."""
        if self.task and not self.is_ending:
            self.dropped = True
            if self.begun:
                self.task.cancel()

    def late(self) -> None:
        """Its source takes long."""
        self.is_late, self.rows_waiting = True, 0

    def start(self, todo: list[int], known: Iterable[Row]) -> Feed:
        """``known``: results that an earlier holder of the slice left."""
        row_count, is_first = self.lease.slice.row_count, self.lease.attempt == 1 and self.lease.generation == 0
        self.rows_waiting = len(todo)
        self.rows_done = self.rows_found = row_count - len(todo)
        self.rows_error = sum(row.status == "error" for row in known)
        self.feed = Feed(todo, may_give=is_first and len(todo) == row_count)
        return self.feed

    def finished(self, row: Row) -> None:
        self.rows_done += 1
        self.tokens_done += row.usage.prompt_tokens + row.usage.output_tokens
        if row.status == "error":
            self.rows_error += 1
            self.error = f"{row.error_code}: {row.error_message}"


class ActiveSlices(dict[str, ActiveSlice]):
    """The slices in work, by lease."""

    @property
    def rows_waiting(self) -> int:
        """Rows that wait for a slot of the engine; of a slice that is not read yet all, until it is late."""
        return sum(active.rows_waiting for active in self.values())

    @property
    def late_jobs(self) -> set[str]:
        return {active.lease.job.id for active in self.values() if active.is_late}

    def progress(self) -> list[LeaseProgress]:
        return [active.progress() for active in self.values()]

    def tokens_beside(self, active: ActiveSlice) -> int:
        """Tokens done of the other slices."""
        return sum(one.tokens_done for one in self.values() if one is not active)
