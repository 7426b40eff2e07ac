"""Copies on a machine's disk may go at any time: uploads, files, batches, results, answers of SQL and keys are found again."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from connectors.durable import publish
from harvester.cli.main import app as cli
from harvester.core import Role
from harvester.serve.access.keys import KeyFile, KeyRing
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore, new_file_id
from jobs.batches.plan import BatchPlanner
from jobs.batches.record import BatchWish
from jobs.batches.store import BatchStore
from jobs.config import BatchConfig
from jobs.errors import NotFoundError
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.sql.pool import QueryPool
from jobs.storage.folder import StateFolder
from jobs.storage.place import known_folder, settle_storage
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine
from tests.fakes.lost_ledger import at_work
from tests.storage.machines import HARVEST, LEASE_S, until

MODEL = "scripted"
ID = "ab" * 32
ROWS = 20
LOOKS = 3  # of a controller, more than it needs


class Server:
    """The applications and a replica over one state folder, whose copies can be lost."""

    def __init__(self, root: Path, uri: str) -> None:
        self.clock = ManualClock()
        state = StateFolder(root / "state")
        state.prepare()
        settle_storage(state, uri, may_adopt=True)
        self.folder = known_folder(state.root)
        self.ledger = Ledger(
            self.folder.ledger, self.folder.jobs, lease_s=LEASE_S, now_s=self.clock(), new_server=True, mirror=self.folder.mirror
        )
        self.client = DirectLedger(self.ledger, self.clock)
        self.queries = QueryPool()
        planner = JobPlanner(self.folder, HARVEST, MODEL)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(jobs_api(self.client, planner, self._info, queries=self.queries)),
            base_url="http://jobs",
            timeout=60.0,
        )

    async def _info(self) -> dict[str, Any]:
        return {"model": MODEL, "context_tokens": 8192}

    def runner(self) -> Runner:
        return Runner("a", self.client, ScriptedEngine(MODEL), self.folder, HARVEST, open_parts, self.clock)

    def lose_copies(self) -> None:
        for path in (self.folder.jobs, self.folder.uploads, self.folder.files, self.folder.batches):
            shutil.rmtree(path, ignore_errors=True)

    async def uploaded(self, kind: str = "jsonl") -> str:
        texts = [f"row {number}" for number in range(ROWS)]
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        if kind == "parquet":
            table = io.BytesIO()
            pq.write_table(pa.table({"text": texts}), table)
            data = table.getvalue()
        answer = await self.http.put(f"/uploads/{ID}/docs.{kind}", content=data, params={"last": True})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["uri"])

    async def harvested(self, kind: str = "jsonl") -> str:
        """A job made of an upload, its copies lost at each step."""
        uri = await self.uploaded(kind)
        self.lose_copies()
        inline = {"prompt": "Answer with the last line.\n{text}", "max_tokens": 8}
        made = await self.http.post("/jobs", json={"source": {"uri": uri}, "task": "echo", "task_inline": inline})
        assert made.status_code == 201, made.text
        self.lose_copies()
        async with at_work(self.runner()):
            await until(lambda: all(view.ended_at_s is not None for view in self.ledger.jobs()))
        self.lose_copies()
        return str(made.json()["job"]["id"])


@pytest.fixture
async def server(tmp_path: Path, uri: str) -> AsyncIterator[Server]:
    made = Server(tmp_path, uri)
    async with made.http:
        yield made
    made.queries.close()
    made.ledger.close()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"], ids=["copied", "read in place"])
async def test_an_upload_becomes_a_job_and_its_results_are_read(server: Server, kind: str) -> None:
    job = await server.harvested(kind)
    view = server.ledger.show(job)
    assert (view.state, view.rows_ok) == ("completed", ROWS)
    answer = await server.http.get(f"/jobs/{job}/results")
    rows = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all().to_pylist()
    assert [row["output"] for row in rows] == [f"row {number}" for number in range(ROWS)]
    server.lose_copies()
    answer = await server.http.get(f"/jobs/{job}/results", params={"format": "csv"})
    assert len(answer.text.splitlines()) == ROWS + 1


async def test_sql_over_http_fetches_what_it_names(server: Server) -> None:
    job = await server.harvested()
    for name in (job, "latest"):
        server.lose_copies()
        answer = await server.http.post("/sql", json={"query": f"select count(*) from results('{name}')"})
        assert answer.json()["rows"] == [[ROWS]], answer.text
    server.lose_copies()
    kept = await server.http.post("/sql/answers", json={"query": f"select output from results('{job}')"})
    answer = await server.http.get(f"/sql/answers/{kept.json()['id']}")
    assert pa.ipc.open_stream(io.BytesIO(answer.content)).read_all().num_rows == ROWS


async def test_commands_read_results_that_are_not_on_this_disk(server: Server, tmp_path: Path) -> None:
    job = await server.harvested()
    env = {"HARVESTER_STATE": str(server.folder.root)}

    def told(*words: str) -> str:
        server.lose_copies()
        done = CliRunner().invoke(cli, words, env=env)
        assert done.exit_code == 0, done.output
        return done.output

    assert len(told("results", job, "--format", "jsonl").splitlines()) == ROWS
    assert json.loads(told("sql", f"select count(*) as rows from results('{job}')", "--json")) == [{"rows": ROWS}]
    told("results", "latest", "-o", str(tmp_path / "out.parquet"))
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == ROWS
    told("results", job, "--into", str(tmp_path / "out.csv"))
    assert len((tmp_path / "out.csv").read_text().splitlines()) == ROWS + 1
    assert server.folder.mirror is not None
    assert json.loads(told("show", job, "--json"))["results"] == server.folder.mirror.address(server.folder.results(job))


async def test_an_upload_that_a_job_reads_is_not_forgotten(server: Server) -> None:
    uri = await server.uploaded()
    made = await server.http.post("/jobs", json={"source": {"uri": uri}})
    refused = await server.http.delete(f"/uploads/{ID}/docs.jsonl")
    job = made.json()["job"]["id"]
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        409,
        f"job {job} reads this upload; cancel it first, or let it end",
    )
    await server.http.post(f"/jobs/{job}/cancel")
    assert (await server.http.delete(f"/uploads/{ID}/docs.jsonl")).status_code == 200


async def test_an_upload_that_is_forgotten_is_gone(server: Server) -> None:
    uri = await server.uploaded()
    await server.http.delete(f"/uploads/{ID}/docs.jsonl")
    server.lose_copies()
    made = await server.http.post("/jobs", json={"source": {"uri": uri}})
    assert made.status_code == 404, made.text


def stored(store: FileStore, data: bytes) -> str:
    file_id = new_file_id()
    with publish(store.content(file_id)) as file:
        file.write(data)
    return store.enter(file_id, "input.jsonl", "batch").id


def test_files_are_the_same_for_every_application(tmp_path: Path, uri: str, machine: Callable[[str], Path]) -> None:
    clock = ManualClock()
    stores = []
    for name in ("one", "two"):
        folder = StateFolder(machine(name))
        folder.prepare()
        settle_storage(folder, uri, may_adopt=True)
        folder = known_folder(folder.root)
        stores.append(FileStore(folder.files, clock, folder.mirror))
    first, second = stores
    one, two = stored(first, b"first"), stored(second, b"second")
    assert {file.id for file in first.list()} == {file.id for file in second.list()} == {one, two}
    assert second.fetched(one).read_bytes() == b"first"
    second.delete(one)
    assert [file.id for file in first.list()] == [two]
    with pytest.raises(NotFoundError):
        first.get(one)
    with pytest.raises(NotFoundError):
        second.get(one)


async def test_a_batch_is_brought_to_its_end_whatever_copies_go(server: Server) -> None:
    folder = server.folder
    files = FileStore(folder.files, server.clock, folder.mirror)
    lines = []
    for number in range(ROWS):
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"say {number}"}]}
        lines.append({"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    file_id = stored(files, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    server.lose_copies()

    async def models() -> list[str]:
        return [MODEL]

    def controller() -> BatchController:
        planner = BatchPlanner(folder, files, BatchConfig(), HARVEST, MODEL)
        store = BatchStore(folder.batches, folder.mirror)
        return BatchController(server.client, store, files, planner, folder, models, server.clock, poll_s=0.01)

    made = await controller().create(BatchWish(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"))
    server.lose_copies()
    second = controller()
    await second.look()
    await second.settle()
    server.lose_copies()
    async with at_work(server.runner()):
        await until(lambda: all(view.ended_at_s is not None for view in server.ledger.jobs()))
    server.lose_copies()
    third = controller()
    for _ in range(LOOKS):
        await third.look()
        await third.settle()
    shown = await third.show(str(made["id"]))
    assert shown["status"] == "completed", shown["errors"]
    server.lose_copies()
    output = files.fetched(str(shown["output_file_id"])).read_text().splitlines()
    assert {json.loads(line)["custom_id"] for line in output} == {line["custom_id"] for line in lines}
    files.delete(file_id)
    await third.tidy()
    assert folder.mirror is not None
    assert not folder.mirror.has(folder.snapshot(str(made["id"])))


def test_keys_are_made_where_all_machines_find_them(tmp_path: Path, uri: str, machine: Callable[[str], Path]) -> None:
    folders = []
    for name in ("one", "two"):
        folder = StateFolder(machine(name))
        folder.prepare()
        settle_storage(folder, uri, may_adopt=True)
        folders.append(known_folder(folder.root))
    made = CliRunner().invoke(cli, ["key", "add", "ann", "--state", str(folders[0].root), "--json"])
    assert made.exit_code == 0, made.output
    key = json.loads(made.output)["key"]
    second = KeyFile(folders[1].keys, mirror=folders[1].mirror)
    second.add("bob", [Role.CHAT])
    assert [one.name for one in second.read().keys] == ["ann", "bob"]
    assert KeyRing(path=folders[1].keys).identify(key) is not None
    first = KeyFile(folders[0].keys, mirror=folders[0].mirror)
    first.revoke("ann")
    second.read()
    assert KeyRing(path=folders[1].keys).identify(key) is None


def test_a_new_state_folder_is_repaired_from_a_storage(tmp_path: Path, uri: str, machine: Callable[[str], Path]) -> None:
    server = Server(machine("old"), uri)

    async def harvest() -> str:
        async with server.http:
            return await server.harvested()

    job = asyncio.run(harvest())
    server.queries.close()
    server.ledger.close()
    shutil.rmtree(server.folder.root)
    with suppress(FileNotFoundError):
        (tmp_path / "new").rmdir()
    words = ["repair", "--state", str(tmp_path / "new"), "--storage", uri]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert f"Restored job {job}, paused" in done.output
    env = {"HARVESTER_URL": "http://127.0.0.1:9", "HARVESTER_STATE": str(tmp_path / "new")}
    told = CliRunner().invoke(cli, ["sql", f"select count(*) as rows from results('{job}')", "--json"], env=env)
    assert json.loads(told.output) == [{"rows": ROWS}], told.output
