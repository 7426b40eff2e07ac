"""Jobs removed from the ledger and the disk: on request, and when they are older than the configuration keeps them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from harvester.errors import HarvesterError
from jobs.folder import StateFolder
from jobs.removal import old_jobs, remove_files
from jobs.spec import JobView

log = logging.getLogger("harvester.jobs")

EVERY_S = 3600.0
DAY_S = 86400.0


class LedgerJobs(Protocol):
    async def jobs(self) -> list[JobView]: ...
    async def remove(self, job_id: str) -> None: ...


async def removed(ledger: LedgerJobs, folder: StateFolder, view: JobView) -> JobView:
    """Remove an ended job; return it as it was. Raises `StateError` for one that goes on, or is a batch's."""
    await ledger.remove(view.id)
    others = [other.source for other in await ledger.jobs()]
    await asyncio.to_thread(remove_files, folder, view, others)
    log.info("job_removed job=%s rows=%d", view.id, view.rows_total)
    return view


async def remove_old(ledger: LedgerJobs, folder: StateFolder, retention_days: float, now_s: float) -> list[JobView]:
    """Remove the jobs that ended more than ``retention_days`` ago; returns them."""
    old = old_jobs(await ledger.jobs(), now_s - retention_days * DAY_S)
    return [await removed(ledger, folder, view) for view in old]


async def keep_removing(ledger: LedgerJobs, folder: StateFolder, retention_days: float) -> None:
    """`remove_old` once an hour, until cancelled."""
    while True:
        try:
            await remove_old(ledger, folder, retention_days, time.time())
        except HarvesterError:  # the next hour tries again
            log.warning("old_jobs_kept", exc_info=True)
        await asyncio.sleep(EVERY_S)
