"""Machines with a disk each, one storage, and a ledger that all of them reach."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.run.client import LedgerClient
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.spec import JobRequest, JobView, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.storage.parts import results_of
from jobs.tasks.abilities import Abilities
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine
from tests.fakes.lost_ledger import at_work

LEASE_S = 5.0
NEVER_S = 1e6
HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=LEASE_S, idle_poll_s=0.005, min_slice_rows=8, max_slice_rows=8, min_free_bytes=0)
PATIENCE_S = 60.0


class Machines:
    """Machines with a head, which submits jobs; ``ledger`` has a disk of its own beside the head's."""

    def __init__(self, root: Path, uri: str, repaired: StateFolder | None = None) -> None:
        """``repaired``: an existing folder, which is then the ledger's and the head's."""
        self.root, self.uri = root, uri
        self.clock = ManualClock()
        self.head = repaired or self.folder("head")
        own = repaired or self.folder("ledger")
        self.ledger = Ledger(own.ledger, own.jobs, lease_s=LEASE_S, now_s=self.clock(), new_server=True, mirror=own.mirror)
        self.client = DirectLedger(self.ledger, self.clock)

    def folder(self, name: str) -> StateFolder:
        root = self.root / name
        made = StateFolder(root, Mirror(root, self.uri))
        made.prepare()
        return made

    def submit(self, source: Path, name: str = "head", **fields: Any) -> JobView:
        inline = {"prompt": "Answer with the last line.\n{text}", "max_tokens": 8}
        request = JobRequest(source=SourceSpec(uri=str(source)), task="echo", task_inline=inline, column="text", **fields)
        plan = JobPlanner(self.folder(name), HARVEST, "scripted").plan(request, Abilities(), is_user=True)
        return self.ledger.submit(plan, new=True)[0]

    def runner(self, name: str, engine: ScriptedEngine, client: LedgerClient | None = None, spool_send_s: float = NEVER_S) -> Runner:
        harvest = HARVEST.model_copy(update={"spool_send_s": spool_send_s})
        return Runner(name, client or self.client, engine, self.folder(name), harvest, open_parts, self.clock)

    async def harvest(self, name: str, engine: ScriptedEngine) -> JobView:
        """One machine works until every job has ended; the newest job."""
        async with at_work(self.runner(name, engine)):
            await until(lambda: all(view.ended_at_s is not None for view in self.ledger.jobs()))
        return self.ledger.show("latest")

    def rows(self, name: str, job_id: str) -> list[dict[str, Any]]:
        """A job's results as a machine reads them, by ``row_id``."""
        sink = results_of(self.folder(name), job_id)
        rows: list[dict[str, Any]] = pa.concat_tables([sink.read(part) for part in sink.names()]).sort_by("row_id").to_pylist()
        return rows

    def lose(self, name: str) -> None:
        shutil.rmtree(self.root / name)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nothing here has an event to wait for
            await asyncio.sleep(0.005)
