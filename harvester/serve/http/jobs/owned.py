"""Who may see what of the ledger: an administrator everything, others their own jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from harvester.errors import NotFoundError
from harvester.serve.access.identity import Identity
from jobs.ledger.counts import JobsNow
from jobs.spec import JobView

LATEST = "latest"
_SPEC = "spec"  # a column of jobs
_SHARED_TABLES = ("harvest",)  # rates of the whole server, by model; `lengths` would show the names of others' tasks


class LedgerJobs(Protocol):
    async def jobs(self) -> list[JobView]: ...
    async def newest(self, owner: str | None, count: int | None) -> tuple[list[JobView], int]: ...
    async def show(self, job_id: str) -> JobView: ...


class LedgerNow(Protocol):
    async def now(self, ended: int) -> JobsNow: ...


class LedgerTables(Protocol):
    async def table(self, name: str) -> pa.Table: ...


class LedgerSpecs(Protocol):
    async def table(self, name: str, without: tuple[str, ...] = ()) -> pa.Table: ...
    async def specs(self, job_ids: Sequence[str]) -> dict[str, str]: ...


class AskedOnce:
    """The `LedgerTables` of one query: the ledger is asked for each once, and for no spec, which is long and which SQL does not show."""

    def __init__(self, ledger: LedgerSpecs) -> None:
        self._ledger = ledger
        self._told: dict[str, pa.Table] = {}

    async def table(self, name: str) -> pa.Table:
        if name not in self._told:
            self._told[name] = await self._ledger.table(name, (_SPEC,))
        return self._told[name]

    async def with_specs(self, jobs: pa.Table, job_ids: Sequence[str]) -> pa.Table:
        """``jobs``, with the specs of ``job_ids`` among them: the columns of a job's results follow from its spec."""
        specs = await self._ledger.specs(job_ids) if job_ids else {}
        return jobs.append_column(_SPEC, pa.array([specs.get(job_id) for job_id in jobs["id"].to_pylist()], pa.string()))


async def own_job(ledger: LedgerJobs, job_id: str, who: Identity) -> JobView:
    """The job, if it is the caller's. Raises `NotFoundError` alike for another's job and for an unknown one."""
    if who.is_admin:
        return await ledger.show(job_id)
    if job_id == LATEST:
        views, _ = await own_jobs(ledger, who, 1)
        if views:
            return views[0]
    else:
        try:
            view = await ledger.show(job_id)
        except NotFoundError:
            view = None
        if view is not None and who.owns(view.owner):
            return view
    raise NotFoundError(f"key {who.name} has no job {job_id[:80]!r}; list its jobs with: harvester jobs")


async def own_jobs(ledger: LedgerJobs, who: Identity, count: int | None) -> tuple[list[JobView], int]:
    """The caller's newest ``count`` jobs, newest first, and how many older ones there are. None: all."""
    if who.is_admin:
        return await ledger.newest(None, count)
    return await ledger.newest(who.name, count) if who.name is not None else ([], 0)


async def own_active(ledger: LedgerNow, who: Identity) -> list[JobView]:
    """The caller's jobs that have not ended, newest first."""
    found = await ledger.now(0)
    return [view for view in found.views if who.owns(view.owner)]


async def own_table(ledger: LedgerTables, name: str, who: Identity) -> pa.Table:
    """A table of the ledger, reduced to the rows that the caller may see. Administrators see all, everybody those of `_SHARED_TABLES`."""
    table = await ledger.table(name)
    if who.is_admin or name in _SHARED_TABLES:
        return table
    if "owner" in table.column_names:
        return table.filter(pc.field("owner") == who.name)
    if "job_id" not in table.column_names:
        return table.slice(0, 0)
    jobs = await own_table(ledger, "jobs", who)
    return table.filter(pc.field("job_id").isin(jobs["id"].combine_chunks()))
