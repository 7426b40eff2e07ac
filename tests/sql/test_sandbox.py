"""SQL within the sandbox: what it answers, and everything that it refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.errors import QueryError
from jobs.sql import sandbox
from jobs.sql.sandbox import QueryAnswer, ask

JOBS = pa.table({"id": ["docs-7f3a"], "key": ["k"], "spec": ["{}"], "created_at_s": [1.0], "state": ["running"]})
LEASES = pa.table({"job_id": ["docs-7f3a"], "slice_id": [0]})
TABLES = {"jobs": JOBS, "leases": LEASES}
variable_of_the_program = JOBS


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sandbox") / "state"
    for folder in ("results", "input", "spool"):
        (root / "jobs" / "docs-7f3a" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"row_id": [0, 1], "output": ["a", None]}), root / "jobs" / "docs-7f3a" / folder / "part-000000.parquet")
    (root / "ledger.sqlite").write_text("secret")
    return root


def answer(state: Path, query: str, limit_rows: int = 100, seconds: float = 30.0) -> QueryAnswer:
    return ask(state, TABLES.get, query, limit_rows=limit_rows, seconds=seconds)


def test_views_and_results_are_read(state: Path) -> None:
    assert answer(state, "select id, state from jobs").rows == (("docs-7f3a", "running"),)
    found = answer(state, "from results('latest') order by row_id")
    assert (found.columns, found.rows, found.is_cut) == ((("row_id", "int64"), ("output", "string")), ((0, "a"), (1, None)), False)


def test_values_that_arrow_has_no_type_for_are_text(state: Path) -> None:
    assert answer(state, "select '101'::bit as b, '12:00:00+02'::timetz as t").rows == (("101", "12:00:00+02"),)


READS = [
    "pivot (select 1 as a, 2 as b) on a using sum(b)",
    "explain select 1",
    "describe jobs",
    "with t as (select 1 as x) select x from t",
]


@pytest.mark.parametrize("query", READS)
def test_whatever_only_reads_is_taken(state: Path, query: str) -> None:
    assert answer(state, query).rows


REFUSED = [
    "select * from '{root}/ledger.sqlite'",
    "from read_text('{root}/ledger.sqlite')",
    "from read_parquet('{root}/jobs/docs-7f3a/input/part-000000.parquet')",
    "from read_parquet('{root}/jobs/docs-7f3a/results/../input/part-000000.parquet')",
    "from read_text('/etc/hostname')",
    "from read_blob('/proc/self/environ')",
    "from glob('/*')",
    "from read_csv('/etc/passwd')",
    "from sniff_csv('/etc/passwd')",
    "from 'http://127.0.0.1:9/x.csv'",
    "from 's3://bucket/x.parquet'",
    "attach '{root}/ledger.sqlite' as other",
    "attach ':memory:' as other",
    "use ledger",
    "copy (select 1) to '{root}/out.csv'",
    "copy (select 1) to '{root}/jobs/docs-7f3a/results/part-000001.parquet'",
    "with t as (copy (select 1) to '{root}/jobs/docs-7f3a/results/x.csv') select 1",
    "explain analyze copy (select 1) to '{root}/jobs/docs-7f3a/results/x.csv'",
    "export database '{root}/dump'",
    "create table t as select 1",
    "create temp table t as select 1",
    "insert into ledger.jobs values (1)",
    "update ledger.jobs set state = 'failed'",
    "delete from ledger.jobs",
    "drop view jobs",
    "set enable_external_access = true",
    "reset allowed_directories",
    "set memory_limit = '100GB'",
    "install httpfs",
    "load httpfs",
    "pragma database_list",
    "call pragma_version()",
    "checkpoint",
    "create secret (type s3, key_id 'x', secret 'y')",
    "from duckdb_secrets()",
    "from variable_of_the_program",
    "select 1; select 2",
    "",
    "select getenv('HOME')",
    "selec 1",
]


@pytest.mark.parametrize("query", REFUSED)
def test_no_other_file_no_attach_and_no_write(state: Path, query: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    with pytest.raises(QueryError) as caught:
        answer(state, query.format(root=state))
    assert "\n" not in caught.value.message
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_a_long_answer_is_cut(state: Path) -> None:
    found = answer(state, "from range(10_000_000_000)", limit_rows=5)
    assert (found.rows, found.is_cut) == (((0,), (1,), (2,), (3,), (4,)), True)
    assert answer(state, "from range(5)", limit_rows=5).is_cut is False


def test_an_answer_of_huge_cells_is_cut(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.sql.sandbox.ANSWER_BYTES", 1 << 20)
    found = answer(state, "select repeat('x', 10_000) from range(100_000)", limit_rows=10_000)
    assert found.is_cut
    assert len(found.rows) < 1000


def test_a_row_larger_than_an_answer_is_refused(state: Path) -> None:
    with pytest.raises(QueryError, match="a row has more than 16 MiB"):
        answer(state, "select repeat('x', 20_000_000)")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("date 'infinity'", "infinity"),
        ("timestamp '-infinity'", "-infinity"),
        ("[date 'infinity', null]", ["infinity", None]),
        ("{'at': date '0044-03-15 (BC)'}", {"at": "-0043-03-15"}),
        ("timestamp_ns '2020-01-01 00:00:00.123456789'", "2020-01-01T00:00:00.123456789"),
        ("timestamp '290309-12-22 (BC) 00:00:00'", "<value out of range: -9223372022400000000>"),
    ],
    ids=str,
)
def test_a_time_that_python_cannot_hold_is_text(state: Path, value: str, told: object) -> None:
    assert answer(state, f"select {value} as at").rows == ((told,),)


def test_a_query_that_takes_too_long_is_stopped(state: Path) -> None:
    with pytest.raises(QueryError, match="took more than 0 s and was stopped"):
        answer(state, "select count(*) from range(1_000_000_000) a, range(1_000) b where a.range % 7 = b.range", seconds=0.05)


def test_a_query_beyond_the_memory_limit_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox._LIMITS, "memory_limit", "50MB")
    with pytest.raises(QueryError, match=r"[Mm]emory"):
        answer(state, "select max(list_sum(l)) from (select list(range) as l from range(20_000_000))")


def test_values_are_such_as_json_holds(state: Path) -> None:
    found = answer(state, "select 'nan'::double, date '2020-01-02', 1.5::decimal(3, 1), 'ab'::blob, [1, 2], 170141183460469231731::hugeint")
    assert found.rows == ((None, "2020-01-02", 1.5, "YWI=", [1, 2], "170141183460469231731"),)


def test_a_query_of_a_megabyte_is_refused(state: Path) -> None:
    with pytest.raises(QueryError, match="the limit is 100,000"):
        answer(state, "select '" + "x" * 1_000_000 + "'")
