"""The world of the harvest loop: a state folder, a ledger, sources and sinks, and the replicas that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.base import Sink
from connectors.memory import MemorySink
from connectors.open import open_source
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.job import plan_job
from jobs.run.client import LedgerClient
from jobs.run.runner import Runner
from jobs.spec import JobRequest, JobView, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine
from tests.fakes.lost_ledger import at_work

LEASE_S = 0.1
HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=LEASE_S, idle_poll_s=0.005, min_slice_rows=4, slices_per_job=4)
PATIENCE_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until ``condition`` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the ledger has no event to wait for
            await asyncio.sleep(0.001)


class World:
    """A state folder, a ledger, sources, and the replicas that come and go. Time stands still unless a test moves it."""

    def __init__(self, folder: Path) -> None:
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        self.folder = StateFolder(folder / "state")
        self.folder.prepare()
        self.clock = ManualClock()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=LEASE_S, now_s=self.clock(), new_server=True)
        self.client = DirectLedger(self.ledger, self.clock)
        self.sinks: dict[str, Sink] = {}
        self.harvest = HARVEST

    def sink(self, folder: StateFolder, job_id: str) -> Sink:
        return self.sinks.setdefault(job_id, MemorySink())

    def submit(self, texts: Sequence[str | None] | pa.Array | int, name: str = "docs", **fields: Any) -> str:
        """Write a Parquet file of these texts (of as many texts, for a number) and enter the job ``NAME-0001`` over it."""
        column = [f"row {i}" for i in range(texts)] if isinstance(texts, int) else texts
        path = self.inputs / f"{name}.parquet"
        pq.write_table(pa.table({"text": column, "number": range(len(column))}), path)
        return self.enter(SourceSpec(uri=str(path)), f"{name}-0001", **fields)

    def enter(self, spec: SourceSpec, job_id: str, prompt: str = "Answer with the last line.\n{text}", **fields: Any) -> str:
        self.clock.advance(1.0)
        inline = {"prompt": prompt, "max_tokens": 8, **fields.pop("inline", {})}
        request = JobRequest(source=spec, task="echo", task_inline=inline, column="text", **fields)
        with open_source(spec.uri, table=spec.table, query=spec.query, snapshot_dir=self.folder.snapshot(job_id)) as source:
            plan = plan_job(request, source, model="scripted", harvest=self.harvest, now_s=self.clock(), token="0001")
        return self.ledger.submit(plan, new=True)[0].id

    def runner(self, engine: ScriptedEngine, holder: str = "a", client: LedgerClient | None = None) -> Runner:
        return Runner(holder, client or self.client, engine, self.folder, self.harvest, self.sink, self.clock)

    def show(self, job_id: str = "latest") -> JobView:
        return self.ledger.show(job_id)

    def ended(self, job_id: str = "latest") -> bool:
        return self.show(job_id).ended_at_s is not None

    def results(self, job_id: str = "docs-0001") -> pa.Table:
        sink = self.sinks[job_id]
        return pa.concat_tables([sink.read(name) for name in sink.names()]).sort_by("row_id")

    def slices(self, state: str) -> list[int]:
        return [line["slice_id"] for line in self.ledger.table("leases").to_pylist() if line["state"] == state]

    async def pause_and_resume(self, job_id: str, engine: ScriptedEngine) -> None:
        """Pause a job, wait until its replicas have dropped it, and resume it."""
        self.ledger.pause(job_id, self.clock())
        await until(lambda: engine.running == 0 and not self.slices("leased"))
        self.ledger.resume(job_id, self.clock())


async def harvest(world: World, engine: ScriptedEngine, *, holder: str = "a", client: LedgerClient | None = None) -> JobView:
    """Run one replica until every job has ended; the newest job."""
    async with at_work(world.runner(engine, holder, client)) as task:
        await until(lambda: task.done() or all(job.ended_at_s is not None for job in world.ledger.jobs()))
        if task.done():
            await task
    return world.show()


class LoopClock(ManualClock):
    """The loop's virtual time, where there is one."""

    def __call__(self) -> float:
        try:
            return self.now_s + asyncio.get_running_loop().time()
        except RuntimeError:
            return self.now_s


def fleet(folder: Path) -> World:
    """A world with the lease times of a server, whose clock is the loop's: for replicas in virtual time."""
    world = World(folder)
    world.clock = LoopClock()
    world.harvest = HarvestConfig()
    world.ledger = Ledger(Path(":memory:"), world.folder.jobs, lease_s=15.0, now_s=world.clock(), new_server=True)
    world.client = DirectLedger(world.ledger, world.clock)
    return world
