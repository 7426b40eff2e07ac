"""A key sees and changes its own jobs, files and batches; the administrator's sees all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI

from harvester.core import Role
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.http.jobs.intake import Intake
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.live.broadcast import Broadcaster
from harvester.serve.http.live.events import FrameSource
from harvester.serve.openai.api import openai_api
from jobs.access.limits import Limits
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore
from jobs.batches.plan import BatchPlanner
from jobs.batches.store import BatchStore
from jobs.config import BatchConfig, HarvestConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

HARVEST = HarvestConfig()
MODEL = "tiny"


class Directory:
    """Knows three keys: two of the role batch, and the administrator's."""

    limits = Limits(max_job_rows=3, max_tokens=100, max_grammar_cost=1000, max_upload_bytes=4000, max_stored_bytes=900)

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity | None:
        roles = {"ann": Role.BATCH, "bob": Role.BATCH, "boss": Role.ADMIN}
        return Identity(bearer, frozenset({roles[bearer]}), Limits() if bearer == "boss" else self.limits) if bearer in roles else None


class House:
    """Jobs, files and batches of one state folder, without Ray."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.folder = StateFolder(root / "state")
        self.folder.prepare()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=10.0, now_s=self.clock(), new_server=True)
        client = DirectLedger(self.ledger, self.clock)
        files = FileStore(self.folder.files, self.clock)
        planner = BatchPlanner(self.folder, files, BatchConfig(), HARVEST, MODEL)
        self.controller = BatchController(client, BatchStore(self.folder.batches), files, planner, self.folder, self._models, self.clock)
        gate = Gate(Directory())
        frames = FrameSource(self._no_replicas, client, {})
        self.app = FastAPI()
        jobs = JobPlanner(self.folder, HARVEST, MODEL, SourcesConfig(roots=(str(root),)))
        self.app.mount("/api", jobs_api(client, jobs, self._info, None, Broadcaster(frames), gate))
        self.app.mount("/", openai_api(files, self.controller, gate=gate, intake=Intake(files, self.folder)))
        self.docs = root / "docs.parquet"
        pq.write_table(pa.table({"text": ["one", "two", "three"]}), self.docs)

    async def _models(self) -> list[str]:
        return [MODEL]

    async def _no_replicas(self) -> list[dict[str, Any]]:
        return []

    async def _info(self) -> dict[str, Any]:
        return {"context_tokens": 512}

    async def ask(self, who: str, method: str, path: str, **given: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1") as http:
            return await http.request(method, path, headers={"authorization": f"Bearer {who}"}, **given)

    async def submit(self, who: str, **fields: Any) -> httpx.Response:
        return await self.ask(who, "POST", "/api/jobs", json={"source": {"uri": str(self.docs)}, **fields})

    async def upload(self, who: str, lines: int = 2, **body: Any) -> httpx.Response:
        message = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body}
        made = [{"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": message} for number in range(lines)]
        content = "\n".join(map(json.dumps, made)).encode()
        return await self.ask(who, "POST", "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})

    async def batch(self, who: str, file_id: str) -> httpx.Response:
        wish = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return await self.ask(who, "POST", "/v1/batches", json=wish)

    async def ended(self, batch_id: str) -> dict[str, Any]:
        await self.controller.look()
        await self.controller.settle()
        return dict((await self.ask("boss", "GET", f"/v1/batches/{batch_id}")).json())


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    made.ledger.check()
    made.ledger.close()


async def job_of(house: House, who: str) -> str:
    answer = await house.submit(who)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"]["id"])


# -- jobs ---------------------------------------------------------------------------------------------------------------------------


async def test_each_key_lists_its_own_jobs_and_the_administrator_all(house: House) -> None:
    anns, bobs = await job_of(house, "ann"), await job_of(house, "bob")
    listed = {who: [job["id"] for job in (await house.ask(who, "GET", "/api/jobs")).json()["jobs"]] for who in ("ann", "bob", "boss")}
    assert {who: set(ids) for who, ids in listed.items()} == {"ann": {anns}, "bob": {bobs}, "boss": {anns, bobs}}


async def test_the_same_request_of_two_keys_is_two_jobs(house: House) -> None:
    first = await job_of(house, "ann")
    assert await job_of(house, "bob") != first
    again = await house.submit("ann")
    assert (again.status_code, again.json()["job"]["id"], again.json()["job"]["owner"]) == (200, first, "ann")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/retry")],
)
async def test_anothers_job_is_as_one_that_is_not_there(house: House, method: str, path: str) -> None:
    anns = await job_of(house, "ann")
    body = {"json": {"weight": 2.0}} if method == "PATCH" else {}
    answer = await house.ask("bob", method, f"/api/jobs/{anns}{path}", **body)
    missing = await house.ask("bob", method, f"/api/jobs/docs-0000{path}", **body)
    assert (answer.status_code, missing.status_code) == (404, 404)
    assert answer.json()["error"]["message"].replace(anns, "docs-0000") == missing.json()["error"]["message"]
    assert (await house.ask("ann", "GET", f"/api/jobs/{anns}")).json()["state"] == "queued"
    assert (await house.ask("boss", "POST", f"/api/jobs/{anns}/pause")).json()["state"] == "paused"


async def test_the_latest_job_is_the_askers(house: House) -> None:
    anns = await job_of(house, "ann")
    house.clock.advance(1)
    assert (await house.ask("bob", "GET", "/api/jobs/latest")).status_code == 404
    bobs = await job_of(house, "bob")
    assert (await house.ask("ann", "POST", "/api/jobs/latest/pause")).json()["id"] == anns
    assert (await house.ask("bob", "GET", "/api/jobs/latest")).json()["id"] == bobs


@pytest.mark.parametrize(("who", "newest", "older"), [("ann", "ann", 1), ("bob", "bob", 0), ("boss", "bob", 2)])
async def test_the_newest_jobs_are_the_askers_and_its_older_ones_are_counted(house: House, who: str, newest: str, older: int) -> None:
    made = {}
    for name in ("ann", "ann", "bob"):
        made[name] = (await house.submit(name, new=True)).json()["job"]["id"]
        house.clock.advance(1)
    listed = (await house.ask(who, "GET", "/api/jobs?limit=1")).json()
    assert ([view["id"] for view in listed["jobs"]], listed["older"]) == ([made[newest]], older)
    whole = (await house.ask(who, "GET", "/api/jobs")).json()
    assert (len(whole["jobs"]), whole["older"]) == (older + 1, 0)
    refused = await house.ask(who, "GET", "/api/jobs?limit=0")
    assert (refused.status_code, "limit" in refused.json()["error"]["message"]) == (400, True)


async def test_the_active_jobs_are_the_askers_that_have_not_ended_however_old(house: House) -> None:
    oldest, ended, newest = [(await house.submit("ann", new=True)).json()["job"]["id"] for _ in range(3)]
    bobs = await job_of(house, "bob")
    await house.ask("ann", "POST", f"/api/jobs/{ended}/cancel")
    await house.ask("ann", "POST", f"/api/jobs/{oldest}/pause")
    listed = {who: (await house.ask(who, "GET", "/api/jobs?active=true&limit=1")).json()["jobs"] for who in ("ann", "bob", "boss")}
    found = {who: {view["id"] for view in views} for who, views in listed.items()}
    assert found == {"ann": {oldest, newest}, "bob": {bobs}, "boss": {oldest, newest, bobs}}


async def test_sql_and_the_ledgers_tables_show_what_is_the_askers(house: House) -> None:
    anns, bobs = await job_of(house, "ann"), await job_of(house, "bob")
    for who, seen in (("ann", {anns}), ("bob", {bobs}), ("boss", {anns, bobs})):
        for query in ("select id from jobs", "select distinct job_id from leases"):
            rows = (await house.ask(who, "POST", "/api/sql", json={"query": query})).json()["rows"]
            assert {row[0] for row in rows} == seen, (who, query)
        for name, column in (("jobs", "id"), ("leases", "job_id")):
            told = await house.ask(who, "GET", f"/api/ledger/{name}")
            assert set(pa.ipc.open_stream(told.content).read_all()[column].to_pylist()) == seen
    other = await house.ask("bob", "POST", "/api/sql", json={"query": f"select * from results('{anns}')"})
    assert other.status_code == 400
    assert "unknown job" in other.json()["error"]["message"]
    parts = house.folder.results(anns)
    parts.mkdir(parents=True)
    pq.write_table(pa.table({"output": ["secret"]}), parts / "part-000000.parquet")
    direct = await house.ask("bob", "POST", "/api/sql", json={"query": f"select * from read_parquet('{parts}/part-000000.parquet')"})
    assert direct.status_code == 400
    assert "secret" not in direct.text


async def test_the_live_page_shows_the_askers_jobs(house: House) -> None:
    anns, bobs = await job_of(house, "ann"), await job_of(house, "bob")
    for who, seen in (("ann", {anns}), ("boss", {anns, bobs})):
        assert {job["id"] for job in await _frame_of_jobs(house, who)} == seen


async def _frame_of_jobs(house: House, who: str) -> list[dict[str, Any]]:
    text, found = "", asyncio.Event()
    scope = {
        "type": "http", "method": "GET", "path": "/api/events", "raw_path": b"/api/events", "query_string": b"", "root_path": "",
        "headers": [(b"authorization", f"Bearer {who}".encode()), (b"host", b"x")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip

    async def receive() -> Any:
        await found.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"").decode()
        if "event: jobs\ndata: " in text and text.endswith("\n\n"):
            found.set()

    async with asyncio.timeout(60):
        serving = asyncio.create_task(house.app(scope, receive, send))
        await found.wait()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    return list(json.loads(text.split("event: jobs\ndata: ")[1].split("\n\n")[0])["jobs"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"task": "classify", "options": {"labels": [f"label {number}" for number in range(200)]}}, "response_format"),
    ],
    ids=["tokens", "labels"],
)
async def test_a_job_above_a_limit_of_its_key_is_not_made(house: House, fields: dict[str, Any], param: str) -> None:
    answer = await house.submit("ann", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, param)
    assert (await house.submit("boss", **fields)).status_code == 201


async def test_a_job_of_more_rows_than_its_key_may_have_is_not_made(house: House) -> None:
    pq.write_table(pa.table({"text": ["one", "two", "three", "four"]}), house.docs)
    answer = await house.submit("ann")
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "4 rows; the limit of this key is 3" in answer.json()["error"]["message"]
    assert (await house.ask("ann", "GET", "/api/jobs")).json()["jobs"] == []


# -- files and batches --------------------------------------------------------------------------------------------------------------


async def test_each_key_has_its_own_files(house: House) -> None:
    file_id = (await house.upload("ann")).json()["id"]
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert (await house.ask("bob", "GET", path)).status_code == 404
        assert (await house.ask("ann", "GET", path)).status_code == 200
        assert (await house.ask("boss", "GET", path)).status_code == 200
    assert (await house.ask("bob", "DELETE", f"/v1/files/{file_id}")).status_code == 404
    assert (await house.ask("bob", "GET", "/v1/files")).json()["data"] == []
    assert (await house.ask("ann", "DELETE", f"/v1/files/{file_id}")).json()["deleted"] is True
    statuses = [(await house.ask(who, "GET", f"/v1/files?after={file_id}")).status_code for who in ("ann", "bob")]
    assert statuses == [200, 400], "where it was is told to its owner alone"


async def test_each_key_has_its_own_batches_and_makes_them_of_its_own_files(house: House) -> None:
    file_id = (await house.upload("ann")).json()["id"]
    stolen = await house.batch("bob", file_id)
    assert (stolen.status_code, stolen.json()["error"]["param"]) == (400, "input_file_id")
    batch_id = (await house.batch("ann", file_id)).json()["id"]
    assert (await house.ask("bob", "GET", f"/v1/batches/{batch_id}")).status_code == 404
    assert (await house.ask("bob", "POST", f"/v1/batches/{batch_id}/cancel")).status_code == 404
    assert (await house.ask("bob", "GET", "/v1/batches")).json()["data"] == []
    assert [one["id"] for one in (await house.ask("ann", "GET", "/v1/batches")).json()["data"]] == [batch_id]
    assert (await house.ended(batch_id))["status"] == "in_progress"
    assert (await house.ask("ann", "GET", f"/api/jobs/{batch_id}")).json()["owner"] == "ann"
    assert (await house.ask("bob", "GET", f"/api/jobs/{batch_id}")).status_code == 404


@pytest.mark.parametrize(
    ("lines", "body", "code"),
    [(4, {}, "too_many_requests"), (1, {"n": 2000}, "too_large"), (1, {"max_tokens": 101}, "too_large")],
    ids=["requests", "choices", "tokens"],
)
async def test_a_batch_above_a_limit_of_its_key_fails_with_the_line(house: House, lines: int, body: dict[str, Any], code: str) -> None:
    file_id = (await house.upload("ann", lines, **body)).json()["id"]
    batch_id = (await house.batch("ann", file_id)).json()["id"]
    ended = await house.ended(batch_id)
    assert (ended["status"], ended["errors"]["data"][0]["code"]) == ("failed", code)


async def test_a_file_above_the_limit_of_its_key_is_not_taken(house: House) -> None:
    answer = await house.upload("ann", 40)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert (await house.ask("ann", "GET", "/v1/files")).json()["data"] == []
    assert (await house.upload("boss", 40)).status_code == 200


async def test_the_files_of_a_key_hold_so_much_together(house: House) -> None:
    first = await house.upload("ann", 4)
    second = await house.upload("ann", 4)
    assert (first.status_code, second.status_code, second.json()["error"]["code"]) == (200, 413, "too_large")
    assert first.json()["bytes"] > 450
    assert (await house.upload("bob", 4)).status_code == 200
    assert len((await house.ask("ann", "GET", "/v1/files")).json()["data"]) == 1
    await house.ask("ann", "DELETE", f"/v1/files/{first.json()['id']}")
    assert (await house.upload("ann", 4)).status_code == 200


async def test_files_sent_at_once_hold_so_much_together(house: House) -> None:
    sent = await asyncio.gather(*(house.upload("ann", 4) for _ in range(3)))
    assert sorted(answer.status_code for answer in sent) == [200, 413, 413]
    assert len((await house.ask("ann", "GET", "/v1/files")).json()["data"]) == 1


async def test_files_and_uploads_of_a_key_count_together(house: House) -> None:
    path, content = f"/api/uploads/{'ab' * 32}/a.csv", b"1" * 500
    assert (await house.upload("ann", 4)).status_code == 200
    assert (await house.ask("ann", "PUT", path, content=content)).status_code == 413
    assert (await house.ask("bob", "PUT", path, content=content)).status_code == 200
    assert (await house.upload("bob", 4)).status_code == 413


async def test_a_key_whose_files_are_full_is_told_to_delete_some(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = (await house.upload("ann", 2)).json()["bytes"]
    monkeypatch.setattr(Directory, "limits", Limits(max_stored_bytes=stored))
    answer = await house.upload("ann", 1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "file")
    assert answer.json()["error"]["message"] == f"the files of this key hold {stored:,} bytes; the limit is {stored:,}: delete some"


async def test_a_damaged_file_stops_no_upload_and_the_others_count(house: House) -> None:
    path, held = f"/api/uploads/{'ab' * 32}/a.csv", (await house.upload("bob", 4)).json()["bytes"]
    house.folder.files.joinpath(f"file-{'0' * 24}.json").write_text("{")
    assert (await house.upload("ann", 4)).status_code == 200
    assert (await house.ask("bob", "PUT", path, content=b"1" * (901 - held))).status_code == 413
    assert (await house.ask("bob", "PUT", path, content=b"1" * (900 - held))).status_code == 200
