"""A ledger that no longer hears a replica, and a runner at work beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from jobs.run.runner import Runner
from jobs.spec import LeaseProgress, PartStats
from jobs.testing import DirectLedger


class LostLedger(DirectLedger):
    """The ledger of a replica that dies: from `lose` on nothing that the replica says arrives."""

    lost = False
    unheard = 0  # commits that did not arrive

    def lose(self) -> None:
        self.lost = True

    async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
        return [] if self.lost else await super().heartbeat(holder, progress)

    async def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats) -> bool:
        self.unheard += self.lost
        return False if self.lost else await super().commit(lease_id, job_id, slice_id, stats)

    async def release(self, lease_id: str) -> None:
        if not self.lost:
            await super().release(lease_id)


@asynccontextmanager
async def at_work(runner: Runner) -> AsyncIterator[asyncio.Task[None]]:
    """The runner in a task; cancelled at the end, which raises what it died of."""
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
