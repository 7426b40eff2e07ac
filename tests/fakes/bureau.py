"""Files and batches over HTTP with the official client; ledger, controller and a replica with a scripted engine in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI
from openai.types import Batch

from connectors.parquet.parts import PartsSink
from harvester.serve.openai.api import openai_api
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore
from jobs.batches.plan import BatchPlanner
from jobs.batches.store import BatchStore
from jobs.config import BatchConfig, HarvestConfig
from jobs.engine import ApiCall
from jobs.ledger.ledger import Ledger
from jobs.run.runner import Runner
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine

MODEL = "scripted"
HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=0.2, idle_poll_s=0.005, min_slice_rows=4, max_slice_rows=4)
PATIENCE_S = 20.0
ENDED = {"completed", "failed", "expired", "cancelled"}


def line(number: int, **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"say {number}"}]}
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def jsonl(lines: Sequence[object]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


class Bureau:
    """A server without Ray: what `harvester.serve.deployments.openai_app` puts together, and a replica."""

    def __init__(self, root: Path, limits: BatchConfig, reply: Callable[[ApiCall], str], mirror: Mirror | None = None) -> None:
        self.clock = ManualClock()
        self.folder = StateFolder(root / "state", mirror)
        self.folder.prepare()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=HARVEST.lease_s, now_s=self.clock(), new_server=True)
        self.client = DirectLedger(self.ledger, self.clock)
        self.engine = ScriptedEngine(MODEL, concurrency=4, reply=reply)
        self.limits = limits
        self.files = FileStore(self.folder.files, self.clock, mirror)
        self.controller = self.new_controller()
        app = openai_api(self.files, self.controller, max_bytes=limits.max_file_bytes)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://bureau")
        made: Any = self.http  # the client names a fork of httpx as its type
        self.api = AsyncOpenAI(base_url="http://bureau/v1", api_key="none", http_client=made, max_retries=0)

    def new_controller(self) -> BatchController:
        planner = BatchPlanner(self.folder, self.files, self.limits, HARVEST, MODEL)
        store = BatchStore(self.folder.batches)
        return BatchController(self.client, store, self.files, planner, self.folder, self._models, self.clock, poll_s=0.01)

    async def _models(self) -> list[str]:
        return [MODEL]

    def runner(self) -> Runner:
        def sink(folder: StateFolder, job_id: str) -> PartsSink:
            return PartsSink(folder.results(job_id))

        return Runner("a", self.client, self.engine, self.folder, HARVEST, sink, self.clock)

    async def upload(self, lines: Sequence[object] | bytes, **fields: Any) -> str:
        data = lines if isinstance(lines, bytes) else jsonl(lines)
        return (await self.api.files.create(file=("input.jsonl", data), purpose="batch", **fields)).id

    async def create(self, lines: Sequence[object] | bytes, **fields: Any) -> Batch:
        asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
        return await self.api.batches.create(input_file_id=await self.upload(lines), **asked)

    async def until(self, batch_id: str, statuses: set[str], condition: Callable[[Batch], bool] = lambda _: True) -> Batch:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                batch = await self.api.batches.retrieve(batch_id)
                if batch.status in statuses and condition(batch):
                    return batch
                await asyncio.sleep(0.005)

    async def ended(self, lines: Sequence[object] | bytes, **fields: Any) -> Batch:
        return await self.until((await self.create(lines, **fields)).id, ENDED)

    async def lines(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        """An output or error file by custom_id."""
        assert file_id is not None
        text = (await self.api.files.content(file_id)).text
        found = [json.loads(item) for item in text.splitlines()]
        assert all(set(item) == {"id", "custom_id", "response", "error"} and item["id"].startswith("batch_req_") for item in found)
        assert len({item["custom_id"] for item in found}) == len(found)
        return {item["custom_id"]: item for item in found}


@asynccontextmanager
async def going(*works: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
