"""Jobs through the command line, against the real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.engine.embedded.answers import label, lead
from tests.real_server import RealServer, ids

pytestmark = pytest.mark.serve
SPEECHES = Path(__file__).parents[2] / "examples" / "docs_speeches.parquet"


def harvester(server: RealServer, *args: str, code: int = 0) -> str:
    """Run the CLI against the server; its standard output."""
    env = {**os.environ, "HARVESTER_URL": server.url, "HARVESTER_STATE": str(server.state)}
    done = subprocess.run([sys.executable, "-m", "harvester", *args], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == code, f"{args}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def submit(server: RealServer, *args: str) -> dict[str, Any]:
    return dict(json.loads(harvester(server, "submit", *args, "--watch", "--json").splitlines()[-1]))


def rows(server: RealServer, job: dict[str, Any], columns: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(harvester(server, "sql", f"select {columns} from results('{job['id']}')", "--format", "json"))
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "short.parquet"
    duckdb.execute(f"COPY (SELECT id, title, year, substr(text, 1, 300) AS text FROM '{SPEECHES}' LIMIT 24) TO '{path}'")
    return path


def test_a_table_is_summarized_and_its_results_are_sql(server: RealServer, table: Path) -> None:
    job = submit(server, str(table), "--task", "summarize", "--max-tokens", "16")
    assert (job["state"], job["rows_ok"], job["rows_error"], job["rows_recomputed"]) == ("completed", 24, 0, 0)
    assert ids(server.state, job["id"]) == list(range(24))
    query = f"select count(*) as n, count(distinct title) as titles, max(output_tokens) as most from results('{job['id']}')"
    assert json.loads(harvester(server, "sql", query, "--format", "json")) == [{"n": 24, "titles": 24, "most": 16}]
    assert json.loads(harvester(server, "sql", "select state from jobs limit 1", "--format", "json")) == [{"state": "completed"}]


def test_a_summary_is_the_lead_of_its_own_text(server: RealServer, table: Path) -> None:
    job = submit(server, str(table), "--task", "summarize", "--max-tokens", "200")
    found = rows(server, job, "text, output")
    assert [row["output"].strip() for row in found] == [lead(row["text"]) for row in found]


def test_the_same_job_again_is_the_job_that_exists(server: RealServer, table: Path) -> None:
    first = submit(server, str(table), "--max-tokens", "4")
    again = submit(server, str(table), "--max-tokens", "4")
    other = submit(server, str(table), "--max-tokens", "4", "--new")
    assert again["id"] == first["id"]
    assert other["id"] != first["id"]


def test_labels_are_one_of_those_given(server: RealServer, table: Path) -> None:
    job = submit(server, str(table), "--task", "classify", "--labels", "war,people,Congress")
    assert job["rows_ok"] == 24
    found = rows(server, job, "text, output")
    assert [row["output"] for row in found] == [label(row["text"], ["war", "people", "Congress"]) for row in found]
    assert len({row["output"] for row in found}) >= 2


def test_extracted_fields_are_typed_columns(server: RealServer, table: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    fields = {"president": {"type": "string", "maxLength": 8}, "century": {"type": "integer", "minimum": 1, "maximum": 9}}
    schema.write_text(json.dumps({"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}))
    job = submit(server, str(table), "--task", "extract", "--schema", str(schema), "--max-tokens", "80")
    parts = sorted((server.state / "jobs" / job["id"] / "results").glob("*.parquet"))
    types = pq.read_schema(parts[0])
    assert (types.field("president").type, types.field("century").type) == (pa.string(), pa.int64())
    assert job["rows_ok"] + job["rows_error"] == 24
    assert job["rows_ok"] >= 12, "a guided answer holds its shape unless it is cut off"


def test_fields_are_those_of_the_lines(server: RealServer, tmp_path: Path) -> None:
    path, schema = tmp_path / "orders.parquet", tmp_path / "schema.json"
    texts = [
        f"Dear all,\nthe order is here.\ntotal: {row * 37}.50\nvendor: Zwo{row}p and Sons\npaid: {'no' if row % 2 else 'yes'}"
        for row in range(8)
    ]
    pq.write_table(pa.table({"text": texts}), path)
    fields = {"vendor": {"type": "string"}, "total": {"type": "number"}, "paid": {"type": "boolean"}}
    schema.write_text(json.dumps({"type": "object", "properties": fields, "required": list(fields)}))
    job = submit(server, str(path), "--task", "extract", "--schema", str(schema))
    found = {row["row_id"]: (row["vendor"], row["total"], row["paid"]) for row in rows(server, job, "row_id, vendor, total, paid")}
    assert found == {row: (f"Zwo{row}p and Sons", row * 37 + 0.5, row % 2 == 0) for row in range(8)}


def test_bad_rows_end_as_errors_and_the_others_go_on(server: RealServer, tmp_path: Path) -> None:
    path = tmp_path / "mixed.parquet"
    texts = pa.array([b"good", None, b"", b"  ", b"\xff\xfe", "schön".encode()], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": texts}), path)
    job = submit(server, str(path), "--max-tokens", "4")
    assert (job["state"], job["rows_ok"], job["rows_error"]) == ("completed", 2, 4)
    query = f"select row_id, error_code from results('{job['id']}') where status = 'error' order by row_id"
    found = json.loads(harvester(server, "sql", query, "--format", "json"))
    assert [(row["row_id"], row["error_code"]) for row in found] == [
        (1, "null_text"),
        (2, "empty_text"),
        (3, "empty_text"),
        (4, "not_utf8"),
    ]


def test_a_long_document_is_cut_and_marked(server: RealServer, tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    duckdb.execute(f"COPY (SELECT id, repeat(text, 3) AS text FROM '{SPEECHES}' ORDER BY length(text) DESC LIMIT 1) TO '{path}'")
    job = submit(server, str(path), "--max-tokens", "4")
    assert (job["rows_ok"], job["rows_truncated"]) == (1, 1)
    (row,) = json.loads(harvester(server, "sql", f"select truncated, prompt_tokens from results('{job['id']}')", "--format", "json"))
    assert row["truncated"] is True
    assert 7000 < row["prompt_tokens"] <= 8188


def test_a_job_is_paused_resumed_and_cancelled(server: RealServer, tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    duckdb.execute(f"COPY (SELECT id, substr(text, 1, 6000) AS text FROM '{SPEECHES}') TO '{path}'")
    job = json.loads(harvester(server, "submit", str(path), "--max-tokens", "128", "--json"))["id"]
    server.wait_rows(job, 4)
    assert json.loads(harvester(server, "pause", job, "--json"))["state"] == "paused"
    assert json.loads(harvester(server, "resume", job, "--json"))["state"] in ("queued", "running")
    server.wait_rows(job, 12)
    assert json.loads(harvester(server, "cancel", job, "--json"))["state"] in ("cancelling", "cancelled")
    end_s = time.monotonic() + 60
    while (view := server.get(f"/api/jobs/{job}"))["state"] != "cancelled" and time.monotonic() < end_s:
        time.sleep(0.1)
    assert view["state"] == "cancelled"
    assert 0 < view["rows_ok"] < 124, "finished rows are kept, the rest is not computed"
    assert len(ids(server.state, job)) == view["rows_ok"]


def test_a_duckdb_query_is_a_source(server: RealServer, tmp_path: Path) -> None:
    path = tmp_path / "speeches.duckdb"
    with duckdb.connect(str(path)) as db:
        db.execute(f"CREATE TABLE s AS SELECT * FROM '{SPEECHES}'")
    query = "select title, substr(text, 1, 100) as text from s where year < 1800 order by year"
    job = submit(server, str(path), "--query", query, "--max-tokens", "4")
    assert job["rows_ok"] == job["rows_total"] > 0


def test_rows_of_standard_input_end_in_a_table_once_though_the_writer_is_killed(server: RealServer, tmp_path: Path) -> None:
    lines = "".join(f'{{"id": {number}, "text": "Row {number} says little."}}\n' for number in range(200))
    env = {**os.environ, "HARVESTER_URL": server.url, "HARVESTER_STATE": str(server.state)}
    command = [sys.executable, "-m", "harvester", "submit", "-", "--max-tokens", "4", "--json"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=env, timeout=240)
    job = json.loads(done.stdout)["id"]
    for name in ("out.duckdb:done", "out.jsonl"):
        target = str(tmp_path / name)
        command = [sys.executable, "-m", "harvester", "results", job, "--into", target]
        file = Path(target.partition(":")[0])
        for _ in range(10):  # until one is killed that has begun to write
            file.unlink(missing_ok=True)
            writer = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
            while writer.poll() is None and not file.exists():
                time.sleep(0.001)
            writer.kill()
            if writer.wait() == -signal.SIGKILL:
                break
        assert writer.returncode == -signal.SIGKILL
        harvester(server, "results", job, "--into", target)
    counts = "select count(*), count(distinct row_id)"
    assert duckdb.execute(f"{counts} from '{tmp_path}/out.jsonl'").fetchall() == [(200, 200)]
    with duckdb.connect(tmp_path / "out.duckdb", read_only=True) as connection:
        assert connection.sql(f"{counts} from done where job_id = '{job}'").fetchall() == [(200, 200)]


def test_a_source_that_is_refused_leaves_nothing_in_the_state_folder(server: RealServer, tmp_path: Path) -> None:
    before = sorted(path.name for path in (server.state / "jobs").iterdir())
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text"\n')
    said = harvester(server, "submit", str(tmp_path / "bad.jsonl"), code=2)
    assert "bad.jsonl line 2 is not JSON" in said
    assert sorted(path.name for path in (server.state / "jobs").iterdir()) == before
