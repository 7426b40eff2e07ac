"""Clients that hang up while a job is planned or entered, or a file is taken in; and sources that keep the planner waiting."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectors.durable import publish
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.jobs.planning import AT_ONCE, MAX_IN_LINE
from harvester.serve.keep_running import keep_running
from harvester.serve.openai.api import openai_api
from jobs.batches.files import FileStore, StoredFile
from jobs.config import HarvestConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.spec import JobPlan, JobView, PartStats
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

PATIENCE_S = 60.0


class HeldLedger(DirectLedger):
    """A submit, and the answer to a removal, wait until they are let go."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        super().__init__(ledger, clock)
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()
        self.let_go.set()

    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        self.asked.set()
        await self.let_go.wait()
        return await super().submit(plan, new=new)

    async def remove(self, job_id: str) -> None:
        await super().remove(job_id)
        self.asked.set()
        await self.let_go.wait()


class Office:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = StateFolder(root / "state")
        self.folder.prepare()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=10.0, now_s=0.0, new_server=True)
        self.client = HeldLedger(self.ledger, ManualClock())
        self.planner = JobPlanner(self.folder, HarvestConfig(), "tiny", SourcesConfig(roots=(str(root),)))
        self.begun, self.answers = threading.Semaphore(0), threading.Event()  # of the source
        self.answers.set()
        monkeypatch.setattr(self.planner, "plan", self._slow(self.planner.plan))
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(jobs_api(self.client, self.planner, self._info)), base_url="http://jobs"
        )
        self.docs = root / "docs.csv"  # of which a job keeps a copy
        self.docs.write_text("text\none\ntwo\n", encoding="utf-8")

    def _slow(self, plan: Callable[..., JobPlan]) -> Callable[..., JobPlan]:
        def slow(*given: Any, **options: Any) -> JobPlan:
            self.begun.release()
            assert self.answers.wait(PATIENCE_S)
            return plan(*given, **options)

        return slow

    async def _info(self) -> dict[str, Any]:
        return {"version": "0.1.0", "model": "tiny", "context_tokens": 512, "state": "/state", "url": "http://127.0.0.1:8000"}

    def submit(self, **source: str) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.http.post("/jobs", json={"source": {"uri": str(self.docs), **source}, "new": True}))

    def kept(self) -> set[str]:
        return {path.name for path in self.folder.jobs.iterdir()}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - threads have no event for it
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    office = Office(tmp_path, monkeypatch)
    async with office.http:
        yield office
    office.answers.set()
    office.ledger.close()


async def test_the_copy_of_a_job_whose_client_hung_up_while_it_was_planned_goes(office: Office) -> None:
    office.answers.clear()
    asking = office.submit()
    await until(lambda: office.begun.acquire(blocking=False))
    await cancelled(asking)
    seen: list[set[str]] = []
    office.answers.set()
    answer = await office.submit()  # planned after it, or beside it: its own copy stays
    job = answer.json()["job"]["id"]
    await until(lambda: bool(seen.append(office.kept())) or seen[-1] == {job})
    assert [view.id for view in office.ledger.jobs()] == [job]


async def test_a_job_that_is_on_its_way_into_the_ledger_is_made_whoever_hangs_up(office: Office) -> None:
    office.client.let_go.clear()
    asking = office.submit()
    async with asyncio.timeout(PATIENCE_S):
        await office.client.asked.wait()
    await cancelled(asking)
    office.client.let_go.set()
    await until(lambda: bool(office.ledger.jobs()))
    assert office.kept() == {view.id for view in office.ledger.jobs()}


async def test_slow_sources_hold_up_plans_alone_and_too_many_are_refused(office: Office) -> None:
    office.answers.clear()
    asking = [office.submit() for _ in range(AT_ONCE + MAX_IN_LINE)]
    for _ in range(AT_ONCE):
        await until(lambda: office.begun.acquire(blocking=False))
    async with asyncio.timeout(PATIENCE_S):
        sent = await office.http.put("/uploads/0123456789abcdef0123456789abcdef/docs.csv", content=b"text\none\n", params={"last": True})
        assert (sent.status_code, sent.json()["is_whole"]) == (200, True), sent.text
        refused = await office.submit()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy"), refused.text
    office.answers.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {201}
    assert (await office.submit()).status_code == 201, "the line is free again"


async def test_queries_without_end_are_stopped_and_the_next_job_is_planned(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_STALL_S", 0.2)
    endless = "select count(*) as n from range(1000000000) a, range(1000000000) b where a.range + b.range < 0"
    asking = [office.submit(query=endless) for _ in range(AT_ONCE)]
    async with asyncio.timeout(PATIENCE_S):
        for answer in await asyncio.gather(*asking):
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_source"), answer.text
        assert (await office.submit()).status_code == 201


async def test_a_file_whose_client_hung_up_as_it_was_taken_in_is_whole(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowStore(FileStore):
        def enter(self, *given: Any, **options: Any) -> StoredFile:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return super().enter(*given, **options)

    store = SlowStore(tmp_path, ManualClock())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(openai_api(store, None)), base_url="http://bureau") as http:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", b"{}\n")}}
        asking = asyncio.create_task(http.post("/v1/files", **form))  # type: ignore[arg-type]
        await until(begun.is_set)
        await cancelled(asking)
        go_on.set()
        await until(lambda: bool(store.list()))
    (stored,) = store.list()
    assert store.content(stored.id).read_bytes() == b"{}\n"


async def test_a_file_whose_client_hung_up_while_it_was_synced_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def slow(path: Path) -> Iterator[Any]:
        with publish(path) as file:
            yield file
            begun.set()
            assert go_on.wait(PATIENCE_S)
        ended.set()

    monkeypatch.setattr("harvester.serve.http.jobs.upload.publish", slow)
    app = openai_api(FileStore(tmp_path, ManualClock()), None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bureau") as http:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", b"{}\n")}}
        asking = asyncio.create_task(http.post("/v1/files", **form))  # type: ignore[arg-type]
        await until(begun.is_set)
        await cancelled(asking)
        go_on.set()
        await until(ended.is_set)
        await until(lambda: not list(tmp_path.iterdir()))


async def test_a_job_whose_client_hung_up_while_it_was_removed_leaves_nothing(office: Office) -> None:
    job = (await office.submit()).json()["job"]["id"]
    while lease := office.ledger.lease("a", "tiny", 0.0):
        office.ledger.commit(lease.lease_id, job, lease.slice.slice_id, PartStats(rows_ok=lease.slice.row_count, rows_error=0), 0.0)
    office.client.asked.clear()
    office.client.let_go.clear()
    asking = asyncio.create_task(office.http.delete(f"/jobs/{job}"))
    async with asyncio.timeout(PATIENCE_S):
        await office.client.asked.wait()
    await cancelled(asking)
    office.client.let_go.set()
    await until(lambda: not office.kept())
    assert office.ledger.jobs() == []


async def test_a_client_that_hangs_up_in_an_upload_is_no_bug(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    path = "/uploads/0123456789abcdef0123456789abcdef/docs.csv"
    come = iter([{"type": "http.request", "body": b"text\n", "more_body": True}, {"type": "http.disconnect"}])
    scope = {
        "type": "http",
        "method": "PUT",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        return next(come)

    async def send(message: Any) -> None: ...

    with caplog.at_level(logging.INFO, "harvester"):
        await jobs_api(office.client, office.planner, office._info)(scope, receive, send)
    assert [record.getMessage() for record in caplog.records] == []
    assert (await office.http.get(path)).json()["bytes"] == len(b"text\n")


async def test_a_loop_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvester.serve.keep_running.AGAIN_S", 0.0)
    turns = 0

    async def run() -> None:
        nonlocal turns
        turns += 1
        if turns < 3:
            raise KeyError("of a mistake")

    await keep_running("test", run)
    assert turns == 3
