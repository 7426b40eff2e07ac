"""SQL over HTTP, and what a submit that fails leaves: nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harvester.errors import StorageError
from harvester.serve.http.answers import ANSWER_S
from harvester.serve.http.jobs.removal import keep_removing
from harvester.serve.http.jobs.uploads_api import KEPT_S
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger
from tests.fakes.office import Office, refused

PATIENCE_S = 20.0


async def test_jobs_are_asked_for_in_sql(office: Office) -> None:
    job = await office.submitted()
    answer = await office.post("/sql", {"query": "select id, rows_total from jobs"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "columns": [{"name": "id", "type": "string"}, {"name": "rows_total", "type": "int64"}],
        "rows": [[job.id, 4]],
        "is_cut": False,
    }
    assert (await office.post("/sql", {"query": "from range(9)", "limit": 2})).json()["is_cut"] is True


@pytest.mark.parametrize(
    "query",
    ["from '{docs}'", "from read_text('/etc/hostname')", "attach 'x.db'", "copy (select 1) to '{docs}.csv'", "drop view jobs", "selec", ""],
)
async def test_sql_that_reads_elsewhere_attaches_or_writes_is_refused(office: Office, query: str) -> None:
    refused(await office.post("/sql", {"query": query.format(docs=office.docs)}), 400)
    assert not Path(f"{office.docs}.csv").exists()


async def test_an_answer_is_kept_for_an_hour_and_then_goes_though_nobody_asks_again(office: Office) -> None:
    answers = [(await office.post("/sql/answers", {"query": f"select {number}"})).json()["id"] for number in range(2)]
    old, young = (next(office.folder.answers.rglob(f"{answer}.arrow")) for answer in answers)
    draft = old.with_suffix(".draft")  # of a server that was killed
    draft.write_bytes(b"half")
    for path in (old, draft):
        os.utime(path, (time.time() - 2 * ANSWER_S,) * 2)
    assert "kept for an hour" in refused(await office.http.get(f"/sql/answers/{answers[0]}"), 404)
    sweeping = asyncio.create_task(keep_removing(DirectLedger(office.ledger, office.clock), office.folder, None))
    async with asyncio.timeout(PATIENCE_S):
        while old.exists() or draft.exists():  # noqa: ASYNC110 - the loop has no event
            await asyncio.sleep(0.005)
    sweeping.cancel()
    assert young.exists()
    assert (await office.http.get(f"/sql/answers/{answers[1]}")).status_code == 200


async def test_answers_that_cannot_be_listed_stop_neither_removal_nor_new_ones(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await office.post("/sql/answers", {"query": "select 1"})).status_code == 200
    asked, scandir = asyncio.Event(), os.scandir

    def failing(path: str | Path) -> Any:
        if str(path).startswith(str(office.folder.answers)):
            raise OSError(errno.EIO, "input/output error", str(path))
        return scandir(path)

    async def removed(*_: object) -> None:
        asked.set()

    monkeypatch.setattr("os.scandir", failing)
    monkeypatch.setattr("harvester.serve.http.jobs.removal.finish_removals", removed)
    assert (await office.post("/sql/answers", {"query": "select 2"})).status_code == 200
    sweeping = asyncio.create_task(keep_removing(DirectLedger(office.ledger, office.clock), office.folder, None))
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
    sweeping.cancel()


async def test_a_ledger_that_cannot_be_written_leaves_no_half_of_a_job(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("the ledger cannot be written: disk full")

    lines = office.docs.with_suffix(".jsonl")
    lines.write_text('{"text": "one"}\n')
    monkeypatch.setattr(office.ledger, "submit", full)
    refused(await office.submit(source={"uri": str(lines)}), 500)
    assert office.left_over() == []


@pytest.mark.parametrize("content", ['{"text": "a"}\n{"text": \n', "", '{"n": 1}\n'], ids=["a bad line", "no rows", "no text column"])
async def test_a_source_that_is_refused_leaves_no_half_of_a_job(office: Office, content: str) -> None:
    lines = office.docs.with_suffix(".jsonl")
    lines.write_text(content)
    refused(await office.submit(source={"uri": str(lines)}), 400)
    assert office.left_over() == []


async def test_a_job_of_json_lines_keeps_the_rows_it_was_made_of(office: Office) -> None:
    lines = office.docs.with_suffix(".jsonl")
    lines.write_text('{"text": "one"}\n{"text": "two"}\n')
    job = await office.submitted(source={"uri": str(lines)})
    assert job.rows_total == 2
    assert [path.suffix for path in office.folder.snapshot(job.id).iterdir()] == [".parquet"]


def test_a_new_server_removes_what_a_dead_one_left_of_jobs_never_made(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    for path in (".staging-1/input", "unmade/input", "known/input", "old/results", "old/input"):
        (folder.jobs / path).mkdir(parents=True)
    folder.forget_unmade({"known"})
    assert sorted(path.name for path in folder.jobs.iterdir()) == ["known", "old"]


async def test_an_upload_that_no_job_reads_goes_though_nobody_asks_for_uploads(office: Office) -> None:
    for upload_id in ("ab" * 16, "cd" * 16, "ef" * 16):
        sent = await office.http.put(f"/uploads/{upload_id}/docs.csv", content=b"text\none\n", params={"last": True})
        assert sent.status_code == 200, sent.text
    made = await office.post("/jobs", {"source": {"uri": f"upload:{'ab' * 16}/docs.csv"}})
    assert made.status_code == 201, made.text
    for path in (found for found in office.folder.uploads.rglob("*")):
        os.utime(path, (time.time() - 2 * KEPT_S,) * 2)
    assert (await office.http.get(f"/uploads/{'ef' * 16}/docs.csv")).json()["is_whole"]  # its client is about to submit it
    sweeping = asyncio.create_task(keep_removing(DirectLedger(office.ledger, office.clock), office.folder, None))
    async with asyncio.timeout(PATIENCE_S):
        while len(list(office.folder.uploads.glob("*/*"))) > 2:  # noqa: ASYNC110 - the loop has no event
            await asyncio.sleep(0.005)
    sweeping.cancel()
    assert {path.name for path in office.folder.uploads.glob("*/*")} == {"ab" * 16, "ef" * 16}


class HeldMirror:
    """A storage that answers when it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Semaphore(0), threading.Event()

    def fetch_folder(self, folder: Path, suffix: str = "") -> list[Path]:
        self.asked.release()
        assert self.let_go.wait(PATIENCE_S)
        return []


async def test_a_query_that_reads_no_results_waits_for_no_fetch(office: Office) -> None:
    job, mirror = await office.submitted(), HeldMirror()
    object.__setattr__(office.folder, "mirror", mirror)
    try:
        question = {"query": f"select * from results('{job.id}')"}
        asked = [asyncio.create_task(office.post("/sql", question)) for _ in range(40)]
        async with asyncio.timeout(PATIENCE_S / 2):
            while not mirror.asked.acquire(blocking=False):  # noqa: ASYNC110 - threads have no event for it
                await asyncio.sleep(0.005)
            for task in asked[1:]:
                task.cancel()
            assert (await office.post("/sql", {"query": "select 1"})).json()["rows"] == [[1]]
            answer = await office.post("/sql/answers", {"query": "select 1"})
            assert answer.status_code == 200, answer.text
    finally:
        mirror.let_go.set()
    assert (await asked[0]).status_code == 200
    await asyncio.gather(*asked, return_exceptions=True)


async def test_fetches_whose_client_hung_up_leave_the_other_threads_free(office: Office) -> None:
    job, mirror = await office.submitted(), HeldMirror()
    object.__setattr__(office.folder, "mirror", mirror)
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            for _ in range(40):
                task = asyncio.create_task(office.post("/sql", {"query": f"select * from results('{job.id}')"}))
                for _ in range(100):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        mirror.let_go.set()


class ReadyMirror:
    """A storage that has nothing more to give."""

    def fetch_folder(self, folder: Path, suffix: str = "") -> list[Path]:
        return []


@pytest.mark.parametrize("path", ["/sql", "/sql/answers"])
async def test_a_query_asks_the_ledger_once_for_its_jobs_and_for_the_specs_of_those_it_names(
    office: Office, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    named, other = await office.submitted(), await office.submitted(new=True)
    object.__setattr__(office.folder, "mirror", ReadyMirror())
    table, specs = office.ledger.table, getattr(office.ledger, "specs", None)
    told: list[Any] = []

    def given(name: str, *without: Any) -> Any:
        found = table(name, *without)
        told.append((name, "spec" in found.column_names))
        return found

    def given_specs(job_ids: Any) -> Any:
        assert specs is not None
        told.append(job_ids)
        return specs(job_ids)

    monkeypatch.setattr(office.ledger, "table", given)
    monkeypatch.setattr(office.ledger, "specs", given_specs, raising=False)
    assert (await office.post(path, {"query": "select id, source from jobs"})).status_code == 200
    assert told == [("jobs", False)]
    told.clear()
    query = f"select r.number, j.id from results('{named.id}') r, jobs j where j.id = '{other.id}'"  # a column as the job's spec says
    answer = await office.post(path, {"query": query})
    assert answer.status_code == 200, answer.text
    assert told == [("jobs", False), [named.id]]
