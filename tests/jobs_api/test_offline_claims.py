"""What a job's requests tell the engine of its claim, from the ledger's decision to the extra arguments that the scheduler reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import connectors
from connectors import MemorySink
from harvester.config import DeadlineConfig, HarvestConfig
from harvester.serve.offline import OfflineEngine
from jobs.engine import Claim
from jobs.folder import StateFolder
from jobs.ledger import Ledger
from jobs.plan import plan_job
from jobs.runner import Runner
from jobs.spec import JobRequest, PartStats, SourceSpec
from jobs.testing import DirectLedger, ManualClock

HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=1000.0, idle_poll_s=0.005, min_slice_rows=4, max_slice_rows=4)
BODY = {"messages": [{"role": "user", "content": "hello"}]}


class Host:
    """`harvester.engine.frontend.host.EngineHost` without an engine: keeps what each request carries, and answers after a heartbeat."""

    context_tokens = 8192

    def __init__(self) -> None:
        self.carried: list[dict[str, Any]] = []
        self.openai = self

    async def tokenize(self, messages: Sequence[object]) -> list[int]:
        return [1, 2, 3]

    async def answer(self, request_id: str, token_ids: list[int], *, claim: dict[str, Any], **given: Any) -> Any:
        return await self._answered(claim)

    async def respond(self, request_id: str, endpoint: str, body: object, extra: dict[str, Any]) -> Any:
        return await self._answered({name: value for name, value in extra.items() if name not in ("job", "slice")})

    async def _answered(self, claim: dict[str, Any]) -> Any:
        self.carried.append(claim)
        await asyncio.sleep(0.05)
        tokens = {"prompt_tokens": 3, "cached_tokens": 0, "output_tokens": 1, "preemptions": 0}
        return SimpleNamespace(text="ok", body="{}", status_code=200, finish_reason="stop", **tokens)


def late_job(ledger: Ledger, clock: ManualClock, folder: Path, endpoint: str | None) -> None:
    """A job of 400 rows that has done 80 in 300 s, half of the time that it has."""
    path = folder / "docs.parquet"
    pq.write_table(pa.table({"text": [json.dumps(BODY)] * 400}), path)
    request = JobRequest(source=SourceSpec(uri=str(path)), column="text", max_tokens=8, deadline_at_s=clock() + 600)
    with connectors.open_source(str(path)) as source:
        plan = plan_job(request, source, model="tiny", harvest=HARVEST, now_s=clock(), token="0001")
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"endpoint": endpoint})}), new=True)
    for _ in range(20):
        lease = ledger.lease("earlier", "tiny", clock())
        assert lease is not None
        done = PartStats(rows_ok=4, prompt_tokens=400, output_tokens=80)
        ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, done, clock())
        ledger.claims(clock())
        clock.advance(15.0)


@pytest.mark.parametrize("endpoint", [None, "/v1/chat/completions"], ids=["prompts", "requests of a batch"])
@pytest.mark.parametrize("above_slo", [True, False])
async def test_requests_of_a_raised_job_carry_whether_its_share_goes_above_the_slo(
    tmp_path: Path, endpoint: str | None, above_slo: bool
) -> None:
    clock, host, folder = ManualClock(), Host(), StateFolder(tmp_path / "state")
    folder.prepare()
    deadlines = DeadlineConfig(share_cap=0.2, above_slo=above_slo)
    ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=1000.0, now_s=clock(), new_server=True, deadlines=deadlines)
    late_job(ledger, clock, tmp_path, endpoint)
    engine: Any = OfflineEngine(host, "tiny", 8)  # type: ignore[arg-type]
    runner = Runner("a", DirectLedger(ledger, clock), engine, folder, HARVEST, lambda folder, job: MemorySink(), clock)
    working = asyncio.create_task(runner.run())
    raised: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while not raised and not working.done():
            await asyncio.sleep(0.01)
            raised = [claim for claim in host.carried if claim["share"] > 0.0]
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    assert raised[-1] == Claim(weight=1.0, share=0.2, above_slo=above_slo).extra_args()
    ledger.close()
