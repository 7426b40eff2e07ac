"""SQL over a state folder made by hand: what it reads, what it refuses, how it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.errors import QueryError, StorageError
from jobs.ledger.store.place import read_ledger
from jobs.spec import JobSpec, SourceSpec
from jobs.sql.query import batches, connect, run
from jobs.tasks.spec import AnswerKind, Task
from tests.fakes.ledger_file import add_job as insert_job
from tests.fakes.ledger_file import ledger_file


def rows(state: Path, query: str, tables=None) -> list[dict]:
    with connect(state, tables) as connection:
        return pa.Table.from_batches(list(batches(reader := run(connection, state, query))), reader.schema).to_pylist()


def add_job(state: Path, job: str, created_at_s: float, parts: list[dict]) -> None:
    with ledger_file(state) as ledger:
        insert_job(ledger, job, created_at_s)
    folder = state / "jobs" / job / "results"
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part), folder / f"part-{number:06d}.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: opening a ledger and closing it costs more than the queries."""
    folder = tmp_path_factory.mktemp("made") / "state"
    folder.mkdir()
    one = {"row_id": [0, 1], "output": ["a", None], "status": ["ok", "error"]}
    two = {"row_id": [2], "output": ["c"], "status": ["ok"], "title": ["T"]}
    add_job(folder, "docs-7f3a", 10.0, [one, two])
    add_job(folder, "mail-11aa", 20.0, [{"row_id": [0], "output": ["m"], "status": ["ok"]}])
    add_job(folder, "empty-22bb", 5.0, [])
    return folder


@pytest.fixture
def state(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "state"))


@pytest.fixture(scope="module")
def tables(made: Path) -> dict:
    """The ledger's, as a running server gives them; for tests of many queries, which would open its file each."""
    return {name: read_ledger(made, name) for name in ("jobs", "leases")}


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_results_reads_all_parts_of_a_job_in_row_order_and_fills_columns_a_part_lacks(state):
    assert rows(state, "select row_id, output, title from results('docs-7f3a')") == [
        {"row_id": 0, "output": "a", "title": None},
        {"row_id": 1, "output": None, "title": None},
        {"row_id": 2, "output": "c", "title": "T"},
    ]


def test_latest_is_the_job_that_the_ledger_created_last(state):
    assert rows(state, "from results('latest') select output") == [{"output": "m"}]


def test_a_job_without_parts_has_no_results_and_the_columns_every_job_has(state):
    assert rows(state, "select row_id, output, status from results('empty-22bb') where status = 'ok'") == []


def test_a_job_without_parts_has_the_columns_that_its_task_and_its_kept_input_will_give(state):
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    task = Task(name="extract", prompt="{text}", answer=AnswerKind.JSON, json_schema=schema)
    spec = JobSpec(
        id="new-33cc", key="k", source=SourceSpec(uri="/docs.parquet"), fingerprint="f", task=task, column="text", keep=("title",),
        model="tiny", rows_total=4, created_at_s=1.0,
    )  # fmt: skip
    add_job(state, "new-33cc", 1.0, [])
    with ledger_file(state) as ledger:
        ledger.run("set_spec", [spec.model_dump_json(), "new-33cc"])
    assert rows(state, "select title, year + 1 from results('new-33cc')") == []


def test_a_column_that_only_finished_rows_would_have_is_explained(state):
    with pytest.raises(QueryError, match=r"title.*job empty-22bb has no finished rows yet"):
        rows(state, "select title from results('empty-22bb')")


def test_results_of_two_jobs_can_be_joined_with_the_views(state):
    query = "select j.id, count(*) n from jobs j join leases l on l.job_id = j.id, results('docs-7f3a') r group by j.id order by j.id"
    assert rows(state, query) == [{"id": "docs-7f3a", "n": 3}, {"id": "empty-22bb", "n": 3}, {"id": "mail-11aa", "n": 3}]


def test_the_views_hide_what_only_the_ledger_needs(state):
    assert not {"key", "spec"} & set(rows(state, "from jobs")[0])


def test_an_unknown_job_is_answered_with_the_newest_jobs(state):
    with pytest.raises(QueryError, match="unknown job docs; the newest are: mail-11aa, docs-7f3a, empty-22bb"):
        rows(state, "from results('docs')")


def test_a_state_folder_that_does_not_exist_has_no_jobs_and_still_reads_files(tmp_path):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    nowhere = tmp_path / "nowhere"
    assert rows(nowhere, "from jobs") == []
    assert rows(nowhere, f"select sum(x)::int as s from '{tmp_path / 'x.parquet'}'") == [{"s": 3}]
    with pytest.raises(QueryError, match="there is none yet"):
        rows(nowhere, "from results('latest')")
    assert not nowhere.exists()


def test_a_running_servers_tables_are_used_instead_of_the_file(state):
    tables = {"jobs": pa.table({"id": ["live-1"], "created_at_s": [99.0]}), "leases": pa.table({"job_id": ["live-1"]})}
    assert rows(state, "from jobs", tables.get) == [{"id": "live-1", "created_at_s": 99.0}]
    assert rows(state, "from results('latest')", tables.get) == []


def test_a_folder_name_with_glob_letters_is_read_as_it_is(tmp_path):
    folder = tmp_path / "st[a]te*"
    folder.mkdir()
    add_job(folder, "docs-1", 1.0, [{"row_id": [0], "output": ["x"], "status": ["ok"]}])
    assert rows(folder, "select output from results('docs-1')") == [{"output": "x"}]


HOLD = """
import sqlite3, sys
ledger = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == "all":
    ledger.execute("PRAGMA locking_mode = EXCLUSIVE")
    ledger.execute("UPDATE jobs SET state = 'paused'")
ledger.execute("BEGIN IMMEDIATE")
ledger.execute("UPDATE jobs SET state = 'paused'")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_ledger_in_the_middle_of_a_silent_servers_change_is_read_as_it_was_before(state):
    command = [sys.executable, "-c", HOLD, str(state / "ledger.sqlite"), "change"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert {row["state"] for row in rows(state, "select state from jobs")} == {"running"}
        finally:
            holder.communicate("")


def test_a_ledger_that_another_program_holds_stops_the_views_but_not_the_results(state, monkeypatch):
    monkeypatch.setattr("jobs.ledger.store.sqlite.BUSY_S", 0.01)
    command = [sys.executable, "-c", HOLD, str(state / "ledger.sqlite"), "all"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert len(rows(state, "from results('docs-7f3a')")) == 3
            with pytest.raises(StorageError, match="another process holds the ledger"):
                rows(state, "select * from jobs")
            with pytest.raises(QueryError, match="name nowhere does not exist"):
                rows(state, "select * from nowhere")
        finally:
            holder.communicate("")


def test_reading_the_ledger_file_leaves_it_unchanged(state):
    before = snapshot(state)
    table = read_ledger(state, "jobs")
    assert table is not None
    assert table.num_rows == 3
    assert snapshot(state) == before


def test_a_broken_ledger_file_is_a_storage_error(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError, match=r"the ledger .* is damaged"):
        read_ledger(tmp_path, "jobs")


READS = {
    "select": "select 1 as a",
    "with": "with t as (select 1 as a) from t",
    "from first": "from range(3)",
    "values": "values (1), (2)",
    "describe": "describe jobs",
    "summarize": "summarize leases",
    "show": "show tables",
    "pivot": "pivot jobs on state using count(*)",
    "explain": "explain select 1",
    "explain analyze": "explain analyze select 1",
    "explain options": "explain (analyze, format json) select 1",
    "trailing semicolon and comment": "select 1; -- done",
    "the word copy in text, names and comments": "select 'copy (x) to' as \"copy\" /* copy t to 'x' */",
    "a column named copy": "select sum(copy) from (select 1 as copy)",
}


@pytest.mark.parametrize("query", READS.values(), ids=READS.keys())
def test_statements_that_read_are_allowed(state, tables, query):
    assert rows(state, query, tables.get)


WRITES = {
    "create": ("create table t as select 1", "CREATE is not allowed"),
    "insert": ("insert into jobs select * from jobs", "INSERT is not allowed"),
    "attach": ("attach '{state}/ledger.sqlite' as l", "ATTACH is not allowed"),
    "export": ("export database '{state}/out'", "EXPORT is not allowed"),
    "install": ("install httpfs", "INSTALL is not allowed"),
    "load": ("load httpfs", "LOAD is not allowed"),
    "set": ("set memory_limit = '1GB'", "SET is not allowed"),
    "pragma": ("pragma enable_profiling", "PRAGMA is not allowed"),
    "call": ("call pragma_version()", "CALL is not allowed"),
    "use": ("use ledger", "USE is not allowed"),
    "prepare": ("prepare p as copy (select 1) to '{state}/x.csv'", "PREPARE is not allowed"),
    "two statements": ("select 1; select 2", "give one SQL statement, given 2"),
    "nothing": ("-- nothing", "give one SQL statement, given 0"),
    "copy from": ("copy jobs from 'x.csv'", "COPY ... FROM is not allowed"),
    "copy into the state folder": ("copy (select 1) to '{state}/x.csv'", "harvester's state folder"),
    "copy over a part": ("copy (select 1) to '{state}/jobs/docs-7f3a/results/part-000000.parquet'", "harvester's state folder"),
    "copy by a way around": ("COPY (select 1) TO '{state}/../state/x.csv' (format csv)", "harvester's state folder"),
    "copy by a link": ("copy (select 1) to '{outside}/link/x.csv'", "harvester's state folder"),
    "copy by a file url": ("copy (select 1) to 'file://{state}/x.csv'", "harvester's state folder"),
    "copy into a folder above": (
        "copy (select 1 as a) to '{outside}' (format csv, partition_by (a), overwrite)",
        "harvester's state folder",
    ),
    "copy with a pattern": (
        "copy (select 1 as a) to '{outside}/o' (format csv, partition_by (a), filename_pattern '../../x')",
        "filename_pattern",
    ),
    "copy to an expression": ("copy (select 1) to ('{state}/x.csv')", "single quotes"),
    "copy within a with": ("with t as (copy (select 1) to '{state}/x.csv') select * from t", "whole statement only"),
    "copy within a with, by table": ("with t as (copy jobs to '{state}/x.csv') select * from t", "whole statement only"),
    "explain analyze copy": ("explain analyze copy (select 1) to '{state}/x.csv'", "EXPLAIN is allowed for queries only"),
    "explain options copy": ("explain (analyze) copy (select 1) to '{state}/x.csv'", "EXPLAIN is allowed for queries only"),
    "logging": ("from enable_logging(storage := 'file', storage_config := {{'path': '{state}/logs'}})", "configuration has been locked"),
}


@pytest.mark.parametrize(("query", "message"), WRITES.values(), ids=WRITES.keys())
def test_statements_that_could_change_the_state_are_refused_and_change_nothing(state, tables, query, message):
    (state.parent / "link").symlink_to(state)
    before = snapshot(state)
    with pytest.raises(QueryError, match=message.replace("(", r"\(")):
        rows(state, query.format(state=state, outside=state.parent), tables.get)
    assert snapshot(state) == before


def test_copy_writes_results_to_a_file_elsewhere(state, tmp_path):
    target = tmp_path / "it's.csv"
    quoted = str(target).replace("'", "''")
    assert rows(state, f"copy (from results('docs-7f3a') select row_id, output) to '{quoted}' (header)") == [{"Count": 3}]
    assert target.read_text().splitlines() == ["row_id,output", "0,a", "1,", "2,c"]


ERRORS = {
    "syntax": ("selec 1", r'syntax error at or near "selec"'),
    "column": ("select foo from jobs", r'Referenced column "foo" not found in FROM clause! Candidate bindings'),
    "file": ("from 'nope.parquet'", "No files found that match the pattern"),
    "late, on a row": ("select cast(if(range = 9999, 'x', '1') as int) from range(10000)", "Could not convert string 'x' to INT32"),
}


@pytest.mark.parametrize(("query", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_of_duckdb_become_one_line_that_helps(state, tables, query, message):
    with pytest.raises(QueryError, match=message) as caught:
        rows(state, query, tables.get)
    assert "\n" not in caught.value.message


def test_a_long_result_comes_in_batches_before_it_is_complete(state):
    with connect(state) as connection:
        reader = run(connection, state, "select range from range(1000000000000)", batch_rows=1000)
        assert next(batches(reader)).num_rows == 1000


def test_values_that_arrow_has_no_type_for_are_text_also_in_columns_of_one_name(tmp_path):
    (tmp_path / "state").mkdir()
    query = "select 340282366920938463463374607431768211455::uhugeint as a, 1 as a, ['12:00:00+02'::timetz] as t, '101'::bit as \"b\"\"c\""
    with connect(tmp_path / "state") as connection:
        reader = run(connection, tmp_path / "state", query)
        found = [
            (field.name, column.to_pylist())
            for batch in batches(reader)
            for field, column in zip(reader.schema, batch.columns, strict=True)
        ]
    assert found == [("a", ["340282366920938463463374607431768211455"]), ("a", [1]), ("t", [["12:00:00+02"]]), ('b"c', ["101"])]
