"""What a job's requests tell the engine of it, from the ledger's decision to the extra arguments that the scheduler reads."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.memory import MemorySink
from connectors.open import open_source
from jobs.config import DeadlineConfig, HarvestConfig
from jobs.engine import RowRequest
from jobs.hint import SchedulingHint
from jobs.ledger.ledger import Ledger
from jobs.plan.job import plan_job
from jobs.run.runner import Runner
from jobs.spec import JobRequest, PartStats, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine

HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=1000.0, idle_poll_s=0.005, min_slice_rows=4, max_slice_rows=4)
BODY = {"messages": [{"role": "user", "content": "hello"}]}


def late_job(ledger: Ledger, clock: ManualClock, folder: Path, endpoint: str | None) -> None:
    """A job of 400 rows that has done 80 in 300 s, half of the time that it has."""
    path = folder / "docs.parquet"
    pq.write_table(pa.table({"text": [json.dumps(BODY)] * 400}), path)
    request = JobRequest(source=SourceSpec(uri=str(path)), column="text", max_tokens=8, deadline_at_s=clock() + 600)
    with open_source(str(path)) as source:
        plan = plan_job(request, source, model="tiny", harvest=HARVEST, now_s=clock(), token="0001")
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"endpoint": endpoint})}), new=True)
    for _ in range(20):
        lease = ledger.lease("earlier", "tiny", clock())
        assert lease is not None
        done = PartStats(rows_ok=4, prompt_tokens=400, output_tokens=80)
        ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, done, clock())
        ledger.hints(clock())
        clock.advance(15.0)


@pytest.mark.parametrize("endpoint", [None, "/v1/chat/completions"], ids=["prompts", "requests of a batch"])
@pytest.mark.parametrize("above_slo", [True, False])
async def test_requests_of_a_raised_job_carry_whether_its_share_goes_above_the_slo(
    tmp_path: Path, endpoint: str | None, above_slo: bool
) -> None:
    clock, folder, asked = ManualClock(), StateFolder(tmp_path / "state"), list[RowRequest]()
    engine = ScriptedEngine(model="tiny", concurrency=8, delay_s=0.05, hear=asked.append)  # answers after a heartbeat
    folder.prepare()
    deadlines = DeadlineConfig(share_cap=0.2, above_slo=above_slo)
    ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=1000.0, now_s=clock(), new_server=True, deadlines=deadlines)
    late_job(ledger, clock, tmp_path, endpoint)
    runner = Runner("a", DirectLedger(ledger, clock), engine, folder, HARVEST, lambda folder, job: MemorySink(), clock)
    working = asyncio.create_task(runner.run())
    raised: list[SchedulingHint] = []
    async with asyncio.timeout(20):
        while not raised and not working.done():
            await asyncio.sleep(0.01)
            told = (SchedulingHint.from_args(request.hint.to_args()) for request in asked)  # as the scheduler reads them
            raised = [hint for hint in told if hint.share > 0.0]
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    (job,) = ledger.jobs()
    assert replace(raised[-1], window=0) == SchedulingHint(job.id, share=0.2, above_slo=above_slo)
    ledger.close()
