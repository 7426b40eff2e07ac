"""Jobs removed from the ledger and the disk, on request or when they are older than the configuration keeps them; old answers of SQL."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from harvester.errors import HarvesterError, NotFoundError, StateError
from harvester.serve.http.answers import Answers
from harvester.serve.http.jobs.uploads_api import Uploads
from jobs.removal import begun_removals, check_removable, forget_removal, is_of_batch, note_removal, old_jobs, remove_files
from jobs.spec import JobView
from jobs.storage.folder import StateFolder
from jobs.storage.inputs import kept_input
from jobs.threads import with_storage

log = logging.getLogger("harvester.jobs")

EVERY_S = 3600.0
DAY_S = 86400.0


class LedgerJobs(Protocol):
    async def jobs(self) -> list[JobView]: ...
    async def remove(self, job_id: str) -> None: ...
    async def is_read(self, folder: str) -> bool: ...


async def removed(ledger: LedgerJobs, folder: StateFolder, view: JobView) -> JobView:
    """Remove an ended job; return it as it was. Raises `StateError` if it has not ended, or its batch still has its files.

    If the storage does not answer, or the ledger does not tell whether the job is gone, its files there are deleted later
    (`finish_removals`).
    """
    check_removable(view)
    if await with_storage(is_of_batch, folder, view.id):
        raise StateError(f"job {view.id} is of a batch; delete its files first (DELETE /v1/files/ID), and remove it some minutes later")
    await with_storage(note_removal, folder, view.id, view.source)
    try:
        await ledger.remove(view.id)
    except StateError:
        await with_storage(forget_removal, folder, view.id)
        raise
    except NotFoundError:  # the job was there: an earlier call, whose answer was lost, has removed it
        log.info("job_gone job=%s", view.id)
    await _delete(ledger, folder, view.id, view.source)
    log.info("job_removed job=%s rows=%d", view.id, view.rows_total)
    return view


async def _delete(ledger: LedgerJobs, folder: StateFolder, job_id: str, source: str) -> None:
    kept = kept_input(folder, source)
    if kept is not None and await ledger.is_read(str(kept)):  # asked only now: a job made a moment ago may read it
        kept = None
    await with_storage(remove_files, folder, job_id, kept)
    await with_storage(forget_removal, folder, job_id)


async def finish_removals(ledger: LedgerJobs, folder: StateFolder) -> None:
    """Delete what an earlier removal has left in the storage. A job that the ledger still has was not removed, and keeps its files."""
    begun = await with_storage(begun_removals, folder)
    known = {view.id for view in await ledger.jobs()} if begun else set()
    for job_id, source in begun:
        if job_id in known:
            await with_storage(forget_removal, folder, job_id)
        else:
            await _delete(ledger, folder, job_id, source)


async def remove_old(ledger: LedgerJobs, folder: StateFolder, retention_days: float, now_s: float) -> list[JobView]:
    """Remove the jobs that ended more than ``retention_days`` ago; returns them."""
    gone = []
    for view in old_jobs(await ledger.jobs(), now_s - retention_days * DAY_S):
        try:
            if not await with_storage(is_of_batch, folder, view.id):
                gone.append(await removed(ledger, folder, view))
        except HarvesterError:  # the next hour tries again
            log.warning("old_job_kept job=%s", view.id, exc_info=True)
    return gone


async def keep_removing(ledger: LedgerJobs, folder: StateFolder, retention_days: float | None) -> None:
    """`finish_removals`, `remove_old` and the sweeps of answers and uploads once an hour, until cancelled.

    Without ``retention_days`` no job is too old.
    """
    while True:
        await asyncio.to_thread(Answers(folder).sweep)
        try:
            await finish_removals(ledger, folder)
            if retention_days is not None:
                await remove_old(ledger, folder, retention_days, time.time())
            uploads = Uploads(folder)
            if await asyncio.to_thread(uploads.stale, time.time()):  # listing all jobs costs the ledger a lot
                await with_storage(uploads.sweep, [view.source for view in await ledger.jobs()], time.time())
        except HarvesterError:  # the next hour tries again
            log.warning("old_jobs_kept", exc_info=True)
        await asyncio.sleep(EVERY_S)
