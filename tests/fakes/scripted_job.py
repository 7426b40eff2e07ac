"""A job over real files, harvested by a real runner and ledger with a scripted engine, whose answer to a row is its text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.open import open_source
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.job import plan_job
from jobs.result import Row
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.spec import JobPlan, JobRequest, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine
from jobs.usage import Usage

SLICE_ROWS = 8
SPOOLED = Usage(prompt_tokens=101, output_tokens=7)  # the engine gives other counts
HARVEST = HarvestConfig(heartbeat_s=0.05, lease_s=600.0, idle_poll_s=0.005, max_slice_rows=SLICE_ROWS, min_slice_rows=SLICE_ROWS)


def planned(folder: Path, slices: int, clock: ManualClock, name: str = "docs") -> JobPlan:
    source_path = folder / f"{name}.parquet"
    rows = slices * SLICE_ROWS
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(rows)]}), source_path, row_group_size=rows)
    request = JobRequest(source=SourceSpec(uri=str(source_path)), task="echo", task_inline={"prompt": "{text}", "max_tokens": 8})
    with open_source(str(source_path)) as source:
        return plan_job(request, source, model="scripted", harvest=HARVEST, now_s=clock(), token="0001")


def opened(path: Path, folder: StateFolder, clock: ManualClock, *, new_server: bool = True) -> Ledger:
    return Ledger(path, folder.jobs, lease_s=600.0, now_s=clock(), new_server=new_server)


async def harvest(ledger: Ledger, folder: StateFolder, clock: ManualClock, engine: ScriptedEngine | None = None) -> None:
    """Run one replica until every job has ended."""
    runner = Runner("a", DirectLedger(ledger, clock), engine or ScriptedEngine(), folder, HARVEST, open_parts, clock)
    work = asyncio.create_task(runner.run())
    while any(view.ended_at_s is None for view in ledger.jobs()) and not work.done():  # noqa: ASYNC110 - the ledger has no event to wait for
        await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def ended_job(path: Path, slices: int) -> tuple[StateFolder, ManualClock, JobPlan]:
    """A job that has ended, in the state folder ``path``/state. Its ledger is closed."""
    clock, folder = ManualClock(), StateFolder(path / "state")
    folder.prepare()
    plan = planned(path, slices, clock)
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(plan, new=True)
    await harvest(ledger, folder, clock)
    ledger.close()
    return folder, clock, plan


def results(folder: StateFolder, job_id: str) -> list[dict[str, Any]]:
    """All rows, by ``row_id``."""
    sink = open_parts(folder, job_id)
    rows: list[dict[str, Any]] = pa.concat_tables([sink.read(name) for name in sink.names()]).sort_by("row_id").to_pylist()
    return rows


def spooled_row(row_id: int) -> Row:
    return Row(
        row_id=row_id,
        values={"output": f"spooled {row_id}"},
        status="ok",
        error_code=None,
        error_message=None,
        finish_reason="stop",
        usage=SPOOLED,
        attempts=1,
        latency_ms=1.5,
        truncated=False,
        completed_at_s=1000.25,
    )
