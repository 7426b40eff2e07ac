"""`harvester results` and `harvester sql`: formats, files, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.parquet.parts import PartsSink
from jobs.ledger.store.statements import TABLES


@pytest.fixture
def job(state: Path) -> Path:
    folder = state / "jobs" / "docs-7f3a" / "results"
    folder.mkdir(parents=True)
    part = {"row_id": [0, 1], "output": ["a, b", None], "status": ["ok", "error"], "tags": [["x"], None]}
    pq.write_table(pa.table(part), folder / "part-000000.parquet")
    pq.write_table(pa.table({"row_id": [2], "output": ["ü"], "status": ["ok"], "tags": [["y", "z"]]}), folder / "part-000001.parquet")
    return folder


ROWS = [
    {"row_id": 0, "output": "a, b", "status": "ok", "tags": ["x"]},
    {"row_id": 1, "output": None, "status": "error", "tags": None},
    {"row_id": 2, "output": "ü", "status": "ok", "tags": ["y", "z"]},
]


def test_results_are_json_lines_and_need_no_server(cli, job):
    assert [json.loads(line) for line in cli("results", "docs-7f3a").stdout.splitlines()] == ROWS


def test_errors_are_asked_for_alone(cli, job):
    assert [json.loads(line)["row_id"] for line in cli("results", "--errors").stdout.splitlines()] == [1]


FILES = {
    "parquet": ("out.parquet", lambda path: pq.read_table(path).to_pylist()),
    "jsonl": ("out.jsonl", lambda path: [json.loads(line) for line in path.read_text().splitlines()]),
    "json": ("out.json", lambda path: json.loads(path.read_text())),
}


@pytest.mark.parametrize(("name", "read"), FILES.values(), ids=FILES.keys())
def test_a_files_name_says_its_format(cli, job, tmp_path, name, read):
    result = cli("results", "docs-7f3a", "-o", tmp_path / name, "--json")
    assert json.loads(result.stdout)["rows"] == 3
    assert read(tmp_path / name) == ROWS
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_csv_holds_lists_as_json(cli, job, tmp_path):
    cli("results", "-o", tmp_path / "out.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert lines[0] == {"row_id": "0", "output": "a, b", "status": "ok", "tags": '["x"]'}
    assert lines[1]["tags"] == ""


def test_an_unknown_job_leaves_no_file(cli, job, tmp_path):
    result = cli("results", "nope", "-o", tmp_path / "out.parquet")
    assert result.exit_code == 2
    assert "unknown job nope; the newest are: docs-7f3a" in result.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_a_query_that_fails_on_a_row_leaves_the_file_that_was_there(cli, tmp_path):
    (tmp_path / "out.csv").write_text("before")
    result = cli("sql", "select cast(if(range = 9999, 'x', '1') as int) from range(10000)", "-o", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert (tmp_path / "out.csv").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize("errors", [(), ("--errors",)], ids=["all rows", "errors"])
def test_a_damaged_part_leaves_no_file(cli, job, tmp_path, errors):
    """A bit flips in a page, which DuckDB does not check."""
    PartsSink(job).write("part-000001", pa.table({"row_id": [2], "output": ["ü"], "status": ["error"], "tags": [["y", "z"]]}), {})
    path = job / "part-000001.parquet"
    data = bytearray(path.read_bytes())
    data[60] ^= 4
    path.write_bytes(data)
    result = cli("results", "docs-7f3a", *errors, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert "part-000001.parquet is damaged" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_no_output_file_may_lie_in_the_state_folder(cli, job):
    result = cli("results", "-o", job / "part-000000.parquet")
    assert result.exit_code == 2
    assert "harvester's state folder" in result.stderr
    assert pq.read_table(job / "part-000000.parquet").num_rows == 2


def test_a_file_that_cannot_be_written_is_one_line(cli, job, tmp_path):
    result = cli("results", "-o", tmp_path / "missing" / "out.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write")


SHAPES = {
    "table": ("table", "n  s\n─  ───\n1  a b\n2\n"),
    "markdown": ("markdown", "| n | s |\n| ---: | --- |\n| 1 | a<br>b |\n| 2 |  |\n"),
    "csv": ("csv", '"n","s"\n1,"a\nb"\n2,\n'),
    "json": ("json", '[\n{"n": 1, "s": "a\\nb"},\n{"n": 2, "s": null}\n]\n'),
    "jsonl": ("jsonl", '{"n": 1, "s": "a\\nb"}\n{"n": 2, "s": null}\n'),
}


@pytest.mark.parametrize(("shape", "text"), SHAPES.values(), ids=SHAPES.keys())
def test_sql_prints_each_format(cli, shape, text):
    assert cli("sql", "from (values (1, 'a\nb'), (2, null)) t(n, s)", "--format", shape).stdout == text


def test_sql_json_prints_one_array_even_of_no_rows(cli):
    assert json.loads(cli("sql", "select 1 as a where false", "--json").stdout) == []


def test_values_that_json_does_not_know_are_told_in_its_terms(cli):
    query = "select 'nan'::double as n, date '2020-01-02' as d, 1.50::decimal(5,2) as m, 'ab'::blob as b, {'x': [1]} as s"
    row = {"n": None, "d": "2020-01-02", "m": 1.5, "b": "YWI=", "s": {"x": [1]}}
    assert json.loads(cli("sql", query, "--json").stdout) == [row]


def test_two_columns_of_one_name_both_arrive(cli):
    assert json.loads(cli("sql", "select 1 as a, 2 as a", "--json").stdout) == [{"a": 1, "a_1": 2}]


def test_a_table_on_the_screen_is_cut_and_says_so(cli):
    result = cli("sql", "from range(100)", "--limit", "3")
    assert result.stdout.splitlines()[2:] == ["    0", "    1", "    2"]
    assert "more than 3 rows" in result.stderr
    assert cli("sql", "from range(3)", "--limit", "3").stderr == ""


def test_a_parquet_file_has_few_row_groups(cli, job, tmp_path):
    for number in range(2, 40):
        part = {"row_id": [number + 1], "output": ["x"], "status": ["ok"], "tags": [["y"]]}
        pq.write_table(pa.table(part), job / f"part-{number:06d}.parquet")
    assert cli("results", "-o", tmp_path / "out.parquet").exit_code == 0
    found = pq.ParquetFile(tmp_path / "out.parquet")
    assert (found.num_row_groups, found.read()["row_id"].to_pylist()) == (1, list(range(41)))


def test_parquet_goes_into_a_pipe(cli):
    result = cli("sql", "select 1 as one", "--format", "parquet")
    assert result.exit_code == 0
    assert pq.read_table(io.BytesIO(result.stdout_bytes)).to_pylist() == [{"one": 1}]


def test_numbers_of_any_size_are_numbers_in_json_where_they_are_exact(cli):
    query = "select sum(i) as s, 0.12345678901234567891 as d, interval '1 month 2 days 3 seconds' as t from range(5) as r(i)"
    assert json.loads(cli("sql", query, "--format", "json").stdout) == [{"s": 10, "d": "0.12345678901234567891", "t": "P1M2DT3S"}]


def test_values_that_parquet_has_no_type_for_are_text(cli, tmp_path):
    query = "select 7 as n, interval '1 month 2 days 3 seconds' as i, union_value(k := 1) as u, {} as s, [interval 1 day, null] as l"
    assert cli("sql", f"{query} union all by name select 8 as n", "-o", tmp_path / "out.parquet").exit_code == 0
    whole, empty = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert whole == {"n": 7, "i": "P1M2DT3S", "u": "1", "s": "{}", "l": '["P1D", null]'}
    assert empty == {"n": 8, "i": None, "u": None, "s": None, "l": None}


def test_a_table_that_into_wrote_is_read_by_the_name_that_into_takes(cli, tmp_path):
    with duckdb.connect(tmp_path / "shop.duckdb") as connection:
        connection.execute("create table docs as select 7 as n; create table harvester_parts as select 1 as x")
    for name in ("shop.duckdb:docs", "shop.duckdb"):
        assert json.loads(cli("sql", f"select n from '{tmp_path / name}'", "--json").stdout) == [{"n": 7}]


def test_parquet_goes_to_a_pipe(cli, job):
    result = cli("results", "docs-7f3a", "--format", "parquet")
    assert result.exit_code == 0
    assert pq.read_table(io.BytesIO(result.stdout_bytes)).to_pylist() == ROWS


def test_a_file_name_without_a_known_ending_is_refused(cli, tmp_path):
    result = cli("sql", "select 1", "-o", tmp_path / "out.xyz")
    assert result.exit_code == 2
    assert "'out.xyz' has no known file extension" in result.stderr


def test_a_query_is_read_from_standard_input(cli):
    assert json.loads(cli("sql", "-", "--json", input="select 7 as x").stdout) == [{"x": 7}]


def test_a_running_servers_ledger_is_asked_over_http(cli, server, state):
    state.mkdir()
    assert json.loads(cli("sql", "select id from jobs", "--json").stdout) == [{"id": "live-1"}]
    assert {path for _, path, _ in server.asked} == {"/api/server", "/api/sources/seen", *(f"/api/ledger/{name}" for name in TABLES)}


def test_without_a_state_folder_given_the_servers_own_is_read(cli, server, job, monkeypatch):
    monkeypatch.delenv("HARVESTER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(job / "empty"))
    assert json.loads(cli("sql", "select count(*) as n from results('docs-7f3a')", "--json").stdout) == [{"n": 3}]


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "harvester", "sql", "from range(10000000)", "--format", "jsonl"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"HARVESTER_URL": "http://127.0.0.1:9"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"range": 0}\n'
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        assert (process.wait(), said) == (0, b"")
