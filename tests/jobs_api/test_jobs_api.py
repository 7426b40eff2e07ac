"""The jobs application over HTTP, with a ledger in this process behind it."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.errors import NotFoundError, StateError, UsageError, from_json
from jobs.spec import JobView, PartStats
from tests.fakes.office import INFO, MODEL, Office, refused

# -- submitting ---------------------------------------------------------------------------------------------------------------------


async def test_a_job_is_submitted_and_shown(office: Office) -> None:
    answer = await office.submit(task="summarize")
    assert (answer.status_code, answer.json()["created"]) == (201, True)
    job = JobView.model_validate(answer.json()["job"])
    assert job.id.startswith("docs-")
    assert (job.state, job.task, job.model, job.rows_total, job.source) == ("queued", "summarize", MODEL, 4, str(office.docs))
    shown = await office.http.get(f"/jobs/{job.id}")
    assert (shown.status_code, JobView.model_validate(shown.json())) == (200, job)
    assert (await office.http.get("/jobs/latest")).json()["id"] == job.id


async def test_the_same_job_again_is_the_one_that_is_there(office: Office) -> None:
    first = await office.submitted()
    again = await office.submit()
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert again.json()["job"]["id"] == first.id
    assert office.left_over([first]) == []


async def test_a_new_job_is_made_of_the_same_request_when_it_is_asked_for(office: Office) -> None:
    first = await office.submitted()
    second = await office.submitted(new=True)
    assert first.id != second.id
    assert len((await office.http.get("/jobs")).json()["jobs"]) == 2


async def test_jobs_are_listed_newest_first(office: Office) -> None:
    ids = [(await office.submitted(new=True)).id for _ in range(3)]
    assert [job["id"] for job in (await office.http.get("/jobs")).json()["jobs"]] == ids[::-1]


async def test_the_server_tells_of_itself(office: Office) -> None:
    assert (await office.http.get("/server")).json() == INFO


# -- DuckDB sources -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE reviews AS SELECT 'review ' || i AS text, i AS id FROM range(5) t(i)")
    return path


@pytest.mark.parametrize("source", [{"table": "reviews"}, {"query": "select * from reviews where id < 5"}], ids=["table", "query"])
async def test_rows_of_a_duckdb_file_are_kept_in_the_jobs_own_folder(office: Office, database: Path, source: dict[str, str]) -> None:
    job = await office.submitted(source={"uri": str(database), **source}, column="text")
    (snapshot,) = office.folder.snapshot(job.id).iterdir()
    assert snapshot.parent == office.folder.root / "jobs" / job.id / "input"
    assert sorted(pq.read_table(snapshot)["id"].to_pylist()) == list(range(5))
    assert office.left_over([job]) == []


async def test_the_same_duckdb_job_again_leaves_no_second_copy(office: Office, database: Path) -> None:
    source = {"uri": str(database), "table": "reviews"}
    job = await office.submitted(source=source, column="text")
    again = await office.submit(source=source, column="text")
    assert (again.status_code, again.json()["job"]["id"]) == (200, job.id)
    assert office.left_over([job]) == []
    assert len(list(office.folder.snapshot(job.id).iterdir())) == 1


async def test_a_refused_duckdb_job_leaves_no_copy(office: Office, database: Path) -> None:
    answer = await office.submit(source={"uri": str(database), "table": "reviews"}, column="nothing")
    assert "nothing" in refused(answer, 400)
    assert office.left_over() == []


async def test_an_id_that_another_job_has_is_never_given_twice(office: Office, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is a name and four digits: sooner or later they meet."""
    drawn = iter(["aaaa"] * 3 + ["bbbb"] * 3)
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn) if size == 2 else "staging")
    source = {"uri": str(database), "table": "reviews"}
    first = await office.submitted(source=source, column="text")
    results = office.folder.results(first.id)
    results.mkdir()
    (results / "part-000000.parquet").write_bytes(b"what was computed")
    second = await office.submitted(source=source, column="text", new=True)
    assert first.id.endswith("aaaa")
    assert second.id.endswith("bbbb")
    assert len(list(results.iterdir())) == 1


async def test_submitting_a_job_again_never_touches_its_results(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "aaaa")
    first = await office.submitted()
    again = await office.submit()  # draws the same digits while there is no folder yet that would tell
    assert (again.status_code, again.json()["job"]["id"]) == (200, first.id)
    results = office.folder.results(first.id)
    results.mkdir(parents=True)
    (results / "part-000000.parquet").write_bytes(b"what was computed")
    drawn = iter(["aaaa", "bbbb"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn) if size == 2 else "staging")
    assert (await office.submit()).json()["created"] is False
    assert (results / "part-000000.parquet").read_bytes() == b"what was computed"
    assert office.left_over([first]) == []


# -- refusals -----------------------------------------------------------------------------------------------------------------------


async def test_a_missing_file_is_named(office: Office, tmp_path: Path) -> None:
    message = refused(await office.submit(source={"uri": str(tmp_path / "nowhere.parquet")}), 400)
    assert "nowhere.parquet" in message


async def test_another_model_than_the_servers_is_refused(office: Office) -> None:
    assert refused(await office.submit(model="large"), 400).startswith("this server runs tiny, not large")
    assert (await office.submit(model=MODEL)).status_code == 201


@pytest.mark.parametrize("max_tokens", [512, 100_000])
async def test_an_answer_that_leaves_no_room_for_a_prompt_is_refused(office: Office, max_tokens: int) -> None:
    message = refused(await office.submit(max_tokens=max_tokens), 400)
    assert f"max_tokens {max_tokens} leaves no room" in message
    assert "512" in message
    assert (await office.submit(max_tokens=511)).status_code == 201


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"task": "sumarize"}, "summarize"),
        ({"column": "txt"}, "text"),
        ({"keep": ["nothing"]}, "nothing"),
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"colum": "text"}, "colum"),
    ],
    ids=["task", "column", "keep", "temperature", "max-tokens", "unknown-field"],
)
async def test_a_wrong_request_is_refused_with_what_is_wrong(office: Office, fields: dict[str, Any], word: str) -> None:
    assert word in refused(await office.submit(**fields), 400)
    assert (await office.http.get("/jobs")).json()["jobs"] == []
    assert office.left_over() == []


@pytest.mark.parametrize("body", [b"{not json", b"[]", b'"text"', b"{}", b""], ids=["torn", "list", "text", "empty-object", "nothing"])
async def test_a_malformed_body_is_refused(office: Office, body: bytes) -> None:
    answer = await office.http.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert refused(answer, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "\ud800"},
        {"\ud800": 1},
        {"keep": ["\ud800"]},
        {"options": {"\ud800": 1}},
        {"task": "classify", "options": {"labels": ["\ud800", "b"]}},
        {"task_inline": {"prompt": "\ud800 {text}"}},
    ],
    ids=["task", "field", "keep", "option", "label", "prompt"],
)
async def test_half_a_surrogate_pair_in_a_submit_is_refused(office: Office, fields: dict[str, Any]) -> None:
    body = json.dumps({"source": {"uri": str(office.docs)}, **fields})
    answer = await office.http.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert refused(answer, 400)
    assert office.left_over() == []


@pytest.mark.parametrize("seconds", [-1.0, -1e9, -1e300], ids=["just now", "long ago", "before time"])
async def test_a_deadline_in_the_past_makes_no_job_and_the_answer_names_it(office: Office, seconds: float) -> None:
    at_s = time.time() + seconds
    message = refused(await office.submit(deadline_at_s=at_s), 400)
    assert re.fullmatch(
        rf"deadline_at_s {re.escape(repr(at_s))} has passed: in Unix time it is \d+ now; give a later one, or none", message
    )
    assert (await office.http.get("/jobs")).json()["jobs"] == []
    assert office.left_over() == []


async def test_a_deadline_in_the_past_is_refused_before_the_source_is_looked_at(office: Office) -> None:
    assert "deadline_at_s 1.0 has passed" in refused(await office.submit(source={"uri": "/nowhere.csv"}, deadline_at_s=1.0), 400)


async def test_a_job_keeps_its_deadline_where_the_new_one_is_in_the_past(office: Office) -> None:
    job = await office.submitted(deadline_at_s=time.time() + 3600)
    answer = await office.http.patch(f"/jobs/{job.id}", json={"deadline_at_s": 1.0})
    assert refused(answer, 400).startswith("deadline_at_s 1.0 has passed")
    assert (await office.http.get(f"/jobs/{job.id}")).json()["deadline_at_s"] == job.deadline_at_s


async def test_a_bug_is_answered_as_every_error_is(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office.ledger, "newest", None)
    transport = httpx.ASGITransport(office.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs") as http:
        assert refused(await http.get("/jobs"), 500) == "the server failed; its log has the cause"


@pytest.mark.parametrize(("method", "path"), [("GET", "/jobs/docs-0"), ("POST", "/jobs/docs-0/cancel"), ("POST", "/jobs/latest/retry")])
async def test_an_unknown_job_is_not_found_and_the_newest_are_named(office: Office, method: str, path: str) -> None:
    assert "there are none yet" in refused(await office.http.request(method, path), 404)
    job = await office.submitted()
    message = refused(await office.http.request(method, path.replace("latest", "docs-0")), 404)
    assert message == f"unknown job 'docs-0'; the newest are: {job.id}"


async def test_an_unknown_change_is_not_found(office: Office) -> None:
    job = await office.submitted()
    assert "use cancel, pause, resume or retry" in refused(await office.post(f"/jobs/{job.id}/stop"), 404)


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("DELETE", "/jobs")])
async def test_a_path_that_is_not_there_is_answered_as_every_error_is(office: Office, method: str, path: str) -> None:
    assert refused(await office.http.request(method, path), 404) == f"unknown route {method} {path}"


# -- changes ------------------------------------------------------------------------------------------------------------------------


async def test_a_job_is_paused_resumed_and_cancelled(office: Office) -> None:
    job = await office.submitted()
    states = [(await office.post(f"/jobs/{job.id}/{verb}")).json()["state"] for verb in ("pause", "resume", "cancel")]
    assert states == ["paused", "queued", "cancelled"]


async def test_failed_rows_are_retried(office: Office) -> None:
    job = await office.submitted()
    office.finish(errors=1)
    answer = await office.post("/jobs/latest/retry")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, job.id, "queued")


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry"])
async def test_a_change_that_the_jobs_state_forbids_is_refused(office: Office, verb: str) -> None:
    job = await office.submitted()
    office.finish()
    answer = await office.post(f"/jobs/{job.id}/{verb}")
    assert job.id in refused(answer, 409)
    assert isinstance(from_json(answer.json(), 409), StateError)


# -- tables -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "column"), [("jobs", "id"), ("leases", "job_id")])
async def test_the_ledgers_tables_are_read_as_arrow(office: Office, name: str, column: str) -> None:
    job = await office.submitted()
    answer = await office.http.get(f"/ledger/{name}")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert set(table.column(column).to_pylist()) == {job.id}


async def test_there_are_no_other_tables(office: Office) -> None:
    answer = await office.http.get("/ledger/rows")
    assert "there are jobs, leases, harvest, lengths, usage" in refused(answer, 404)
    assert isinstance(from_json(answer.json(), 404), NotFoundError)


# -- walls --------------------------------------------------------------------------------------------------------------------------


def test_the_application_is_imported_without_ray_or_vllm() -> None:
    code = "import harvester.serve.http.jobs.jobs_api, json, sys; print(json.dumps(sorted({'ray', 'vllm', 'torch'} & set(sys.modules))))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []


def test_an_error_that_is_none_of_ours_still_has_a_kind() -> None:
    assert isinstance(from_json({"detail": "Not Found"}, 404), UsageError)


async def test_the_report_of_gpu_hours_is_summed_by_job_key_and_day_and_is_in_sql(office: Office) -> None:
    job = await office.submitted()
    lease = office.ledger.lease("r", MODEL, office.clock())
    assert lease is not None
    paid = PartStats(rows_ok=4, prompt_tokens=10, output_tokens=5, device_s=1800.0, cost=2.0, currency="EUR")
    office.ledger.commit(lease.lease_id, job.id, lease.slice.slice_id, paid, office.clock())
    row = {"currency": "EUR", "rows": 4, "prompt_tokens": 10, "output_tokens": 5, "gpu_hours": 0.5, "cost": 2.0}
    for by, name in (("job", job.id), ("key", None), ("day", "1970-01-12")):
        answer = await office.http.get("/harvested", params={"by": by})
        assert answer.json() == {"by": by, "harvested": [{"name": name, **row}]}
    assert (await office.http.get("/harvested", params={"by": "week"})).status_code == 400
    answer = await office.post("/sql", {"query": "select job_id, gpu_hours, cost, currency from harvested"})
    assert answer.json()["rows"] == [[job.id, 0.5, 2.0, "EUR"]]
