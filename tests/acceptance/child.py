"""A whole job in one process that may be killed at any moment. Ledger, runner, spool and parts are real, the engine is scripted.

python -m tests.acceptance.child STATE SOURCE [--torn]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.open import open_source
from connectors.parquet.parts import PartsSink
from jobs.config import HarvestConfig
from jobs.engine import Prompt
from jobs.ledger.ledger import Ledger
from jobs.plan.job import plan_job
from jobs.run.runner import Runner
from jobs.spec import JobRequest, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ScriptedEngine

HARVEST = HarvestConfig(max_slice_rows=16, min_slice_rows=16, heartbeat_s=0.05, lease_s=0.5, idle_poll_s=0.01)


class TornSink(PartsSink):
    """The negative control: publishes without the rename, so that a part can be seen half written."""

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        whole = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({f"harvester.{key}": value for key, value in metadata.items()}), whole)
        data = whole.getvalue().to_pybytes()
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(data), 512):
                file.write(data[start : start + 512])
                time.sleep(0.02)  # so that most of the job's time is within a write: a kill at random must meet one, on any machine


def echo(prompt: Prompt) -> str:
    return prompt.messages[-1]["content"][-20:].strip()


async def main(state: Path, source: Path, torn: bool) -> None:
    folder = StateFolder(state)
    folder.prepare()
    ledger = Ledger(folder.ledger, folder.jobs, lease_s=HARVEST.lease_s, now_s=time.time(), new_server=True)
    request = JobRequest(source=SourceSpec(uri=str(source)), task="summarize")
    with open_source(str(source)) as opened:
        plan = plan_job(request, opened, model="scripted", harvest=HARVEST, now_s=time.time(), token="0000")
    job, _ = ledger.submit(plan, new=False)
    sink = TornSink if torn else PartsSink
    runner = Runner(
        "child",
        DirectLedger(ledger, time.time),
        ScriptedEngine(concurrency=8, answer=echo, delay_s=0.01),
        folder,
        HARVEST,
        lambda folder, job_id: sink(folder.results(job_id)),
        time.time,
    )
    work = asyncio.create_task(runner.run())
    print(job.id, flush=True)
    while ledger.show(job.id).state in ("queued", "running"):
        await asyncio.sleep(0.01)
        if work.done():
            work.result()
    work.cancel()
    await asyncio.wait([work])
    ledger.check()
    ledger.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), "--torn" in sys.argv))
