"""Jobs whose deadline passes while nothing asks the ledger for work."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

from harvester.errors import StorageError
from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange
from jobs.states import JobState
from jobs.testing import DirectLedger, ManualClock, scripted_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments.jobs_app import keep_expiring


class AwayAtFirst(DirectLedger):
    away = 2  # calls that fail

    async def expire(self) -> None:
        self.away -= 1
        if self.away >= 0:
            raise StorageError("the ledger is away")
        await super().expire()


async def test_a_job_ends_at_its_deadline_without_a_replica(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger = Ledger(Path(":memory:"), tmp_path, lease_s=60.0, now_s=clock(), new_server=True)
    ledger.submit(scripted_plan("docs"), new=True)
    ledger.adjust("docs", JobChange(deadline_at_s=clock() + 100.0))
    watch = asyncio.create_task(keep_expiring(AwayAtFirst(ledger, clock), every_s=0.001))
    try:
        async with asyncio.timeout(60):
            await asyncio.sleep(0.05)
            assert ledger.show("docs").state is JobState.QUEUED
            clock.advance(101.0)
            while ledger.show("docs").state is not JobState.EXPIRED:  # noqa: ASYNC110 - nothing here has an event to wait for
                await asyncio.sleep(0.005)
    finally:
        watch.cancel()
        ledger.close()
