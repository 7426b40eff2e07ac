"""No API key holds all threads that plan jobs, however slow its sources are and whoever hangs up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harvester.core import Role
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.jobs.planning import AT_ONCE
from jobs.config import HarvestConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.spec import JobPlan
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

PATIENCE_S = 20.0


class Directory:
    """Two keys, which are the names of their owners."""

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity | None:
        return Identity(bearer, frozenset({Role.BATCH})) if bearer in ("ann", "bob") else None


class Office:
    """Plans of ``slow.csv`` wait until they are let go."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = StateFolder(root / "state")
        folder.prepare()
        self.root = root
        for name in ("slow", "docs"):
            (root / f"{name}.csv").write_text("text\none\n", encoding="utf-8")
        self.ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=10.0, now_s=0.0, new_server=True)
        planner = JobPlanner(folder, HarvestConfig(), "tiny", SourcesConfig(roots=(str(root),)))
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()
        monkeypatch.setattr(planner, "plan", self._slow(planner.plan))
        app = jobs_api(DirectLedger(self.ledger, ManualClock()), planner, self._info, gate=Gate(Directory()))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs")

    def _slow(self, plan: Callable[..., JobPlan]) -> Callable[..., JobPlan]:
        def slow(request: Any, *given: Any, **options: Any) -> JobPlan:
            if request.source.uri.endswith("slow.csv"):
                self.begun.release()
                assert self.let_go.wait(PATIENCE_S)
            return plan(request, *given, **options)

        return slow

    async def _info(self) -> dict[str, Any]:
        return {"version": "0.1.0", "model": "tiny", "context_tokens": 512, "state": "/state", "url": "http://127.0.0.1:8000"}

    def submit(self, key: str, name: str) -> asyncio.Task[httpx.Response]:
        body = {"source": {"uri": str(self.root / f"{name}.csv")}, "new": True}
        return asyncio.create_task(self.http.post("/jobs", json=body, headers={"authorization": f"Bearer {key}"}))

    async def has_begun(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.begun.acquire(blocking=False):  # noqa: ASYNC110 - threads have no event for it
                await asyncio.sleep(0.001)


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    office = Office(tmp_path, monkeypatch)
    async with office.http:
        yield office
    office.let_go.set()
    office.ledger.close()


async def test_a_key_whose_sources_are_slow_holds_up_no_other_key(office: Office) -> None:
    slow = [office.submit("ann", "slow") for _ in range(2 * AT_ONCE)]
    await office.has_begun()
    async with asyncio.timeout(PATIENCE_S / 4):
        answer = await office.submit("bob", "docs")
    assert answer.status_code == 201, answer.text
    office.let_go.set()
    assert {one.status_code for one in await asyncio.gather(*slow)} == {201}


async def test_plans_whose_client_hung_up_count_until_they_end(office: Office) -> None:
    asked = [office.submit("ann", "slow") for _ in range(AT_ONCE)]
    await office.has_begun()
    await office.has_begun()
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    again = [office.submit("ann", "slow") for _ in range(AT_ONCE)]
    async with asyncio.timeout(PATIENCE_S / 4):
        assert (await office.submit("bob", "docs")).status_code == 201
    office.let_go.set()
    assert {one.status_code for one in await asyncio.gather(*again)} == {201}
