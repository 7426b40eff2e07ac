"""`--into`: results copied out while the job runs, and `submit -`: rows from standard input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.parquet.parts import PartsSink
from tests.fakes.http_server import job_view


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    return path


@pytest.fixture
def parts(state: Path) -> PartsSink:
    state.mkdir()
    sink = PartsSink(state / "jobs" / "docs-7f3a" / "results")
    for number in range(2):
        sink.write(f"part-{number:06d}", pa.table({"row_id": [number], "output": [f"t{number}"]}), {})
    return sink


def sent(server) -> dict:
    return next(body for method, path, body in server.asked if (method, path) == ("POST", "/api/jobs"))


def read_table(path: Path) -> list[str]:
    with duckdb.connect(path, read_only=True) as connection:
        return [row[0] for row in connection.sql("select output from done order by row_id").fetchall()]


READERS = {
    "out.parquet": lambda path: pq.read_table(path)["output"].to_pylist(),
    "out.jsonl": lambda path: [json.loads(line)["output"] for line in path.read_text().splitlines()],
    "out.csv": lambda path: [row["output"] for row in csv.DictReader(path.read_text().splitlines())],
    "out.duckdb:done": read_table,
}


@pytest.mark.parametrize(("name", "read"), READERS.items(), ids=READERS.keys())
def test_a_job_is_submitted_watched_and_written(cli, server, docs, parts, tmp_path, name, read):
    server.views = [job_view(state="running", rows_ok=1), job_view()]
    result = cli("submit", docs, "--into", tmp_path / name, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["state"], told["into"], told["rows_written"]) == ("completed", str(tmp_path / name), 2)
    assert read(tmp_path / name.removesuffix(":done")) == ["t0", "t1"]


def test_results_go_on_where_they_were_and_grow_with_the_job(cli, server, parts, tmp_path):
    server.views = [job_view(state="running", rows_ok=1), job_view(state="running", rows_ok=2), job_view()]
    for _ in range(2):
        result = cli("results", "--into", tmp_path / "out.jsonl")
        assert result.exit_code == 0
        assert f"wrote 2 rows to {tmp_path / 'out.jsonl'}" in result.stderr
    assert READERS["out.jsonl"](tmp_path / "out.jsonl") == ["t0", "t1"]


def test_a_table_may_be_named_with_the_short_option_too(cli, server, parts, tmp_path):
    assert json.loads(cli("results", "-o", f"{tmp_path}/out.duckdb:done", "--json").stdout)["rows_written"] == 2


WRONG = {
    "no format": ("out", "unknown kind of target"),
    "no table": ("out.duckdb", "name the table too"),
    "the state folder": ("{state}/out.csv", "harvester's state folder"),
    "a file of someone else": ("mine.csv", "is there already and was not written by --into"),
}


@pytest.mark.parametrize(("name", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_target_that_cannot_be_is_said_before_there_is_a_job(cli, server, docs, state, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("a\n1\n")
    result = cli("submit", docs, "--into", name.format(state=state))
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert not any(method == "POST" for method, _, _ in server.asked)
    assert (tmp_path / "mine.csv").read_text() == "a\n1\n"


def test_into_takes_no_other_options_of_output(cli, server, parts, tmp_path):
    result = cli("results", "--into", tmp_path / "out.csv", "--errors")
    assert result.exit_code == 2
    assert "--into cannot be combined with -o" in result.stderr


def test_standard_input_is_kept_in_the_state_folder_before_the_job_is_made(cli, server, state):
    state.mkdir()
    for _ in range(2):
        assert cli("submit", "-", input='{"text": "one"}\n').exit_code == 0
    uri = sent(server)["source"]["uri"]
    assert uri.startswith(str(state / "inputs"))
    assert pq.read_table(uri).to_pylist() == [{"text": "one"}]
    assert len(list((state / "inputs").iterdir())) == 1


def test_what_standard_input_was_taken_for_is_said(cli, server, state):
    state.mkdir()
    assert "is read as one row a line" in cli("submit", "-", input="One.\nTwo.\n").stderr
    assert "is read as CSV" in cli("submit", "-", input="text,id\na,1\n").stderr
    assert "is read as" not in cli("submit", "-", "--input-format", "lines", input="text,id\na,1\n").stderr


REFUSALS = {
    "by the server": ('{"text": "a"}\n', (), {"/api/jobs": (400, {"error": {"code": "bad_column", "message": "no"}})}, "no"),
    "by an option": ('{"text": "a"}\n', ("--table", "a", "--query", "b"), {}, "--table and --query"),
    "for a line": ('{"text": "a"}\n{\n', (), {}, "standard input line 2 is not JSON"),
    "for nothing": ("", (), {}, "standard input is empty"),
}


@pytest.mark.parametrize(("content", "options", "answers", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_submit_that_is_refused_leaves_no_input(cli, server, state, content, options, answers, message):
    state.mkdir()
    server.answers = answers
    result = cli("submit", "-", *options, input=content)
    assert result.exit_code == 2
    assert message in result.stderr
    assert list((state / "inputs").glob("*")) == []


def test_an_input_that_a_job_may_read_stays_when_the_job_fails(cli, server, state):
    state.mkdir()
    server.views = [job_view(state="queued"), job_view(state="failed", message="x")]
    assert cli("submit", "-", "--watch", input='{"text": "a"}\n').exit_code == 1
    assert len(list((state / "inputs").iterdir())) == 1


def test_a_dry_run_of_standard_input_keeps_nothing(cli, state):
    found = json.loads(cli("submit", "-", "--dry-run", "--json", input='{"text": "a"}\n').stdout)
    assert found["rows"] == 1
    assert not state.exists()


def test_a_format_of_standard_input_is_not_for_a_file(cli, server, docs):
    assert "--input-format applies to standard input only" in cli("submit", docs, "--input-format", "csv").stderr
    told = cli("submit", "-", "--encoding", "cp1252", input="a\n").stderr
    assert "--encoding cp1252 is for files; convert standard input before" in told


def test_a_server_on_another_machine_cannot_be_given_standard_input(cli, server, monkeypatch):
    monkeypatch.delenv("HARVESTER_STATE")
    server.state = "/nowhere/state"
    result = cli("submit", "-", input='{"text": "a"}\n')
    assert result.exit_code == 2
    assert "is not on this machine" in result.stderr
