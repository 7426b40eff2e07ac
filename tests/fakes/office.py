"""The jobs application over HTTP, with a ledger in this process behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from harvester.errors import from_json
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.config import HarvestConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.spec import JobView, PartStats
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

MODEL = "tiny"
INFO = {"version": "0.1.0", "model": MODEL, "context_tokens": 512, "state": "/state", "url": "http://127.0.0.1:8000"}


class Office:
    """The application and what stands behind it."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.folder = StateFolder(root / "state")
        self.folder.prepare()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=10.0, now_s=self.clock(), new_server=True)
        self.planner = JobPlanner(self.folder, HarvestConfig(), MODEL, SourcesConfig(roots=(str(root),)))
        self.app = jobs_api(DirectLedger(self.ledger, self.clock), self.planner, self._info)
        # Starlette's test client would need a thread; this one calls the application itself.
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://jobs")
        self.docs = root / "docs.parquet"
        pq.write_table(pa.table({"text": ["one", "two", "three", "four"], "number": [1, 2, 3, 4]}), self.docs)

    async def _info(self) -> dict[str, Any]:
        return INFO

    async def post(self, path: str, body: object = None) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def submit(self, **fields: Any) -> httpx.Response:
        return await self.post("/jobs", {"source": {"uri": str(self.docs)}, **fields})

    async def submitted(self, **fields: Any) -> JobView:
        answer = await self.submit(**fields)
        assert answer.status_code == 201, answer.text
        return JobView.model_validate(answer.json()["job"])

    def left_over(self, jobs: Sequence[JobView] = ()) -> list[str]:
        """Folders in the state's jobs folder that belong to none of ``jobs``."""
        return sorted({path.name for path in self.folder.jobs.iterdir()} - {job.id for job in jobs})

    def finish(self, errors: int = 0) -> None:
        while lease := self.ledger.lease("a", MODEL, self.clock()):
            stats = PartStats(rows_ok=lease.slice.row_count - errors, rows_error=errors)
            self.ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, self.clock())


def refused(answer: httpx.Response, status: int) -> str:
    """The message of an error answer, after a look at its shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert set(error) == {"error"}
    assert set(error["error"]) == {"code", "message", "param", "type"}
    assert from_json(error, status).code == error["error"]["code"]
    assert "\n" not in error["error"]["message"]
    return str(error["error"]["message"])
