"""What the check of a query says of each statement, without a state folder to run it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from connectors.databases.shape import Token, tokens
from harvester.errors import QueryError
from jobs.sql.guard import check_query, check_reads, check_target

STATE = Path("/srv/harvester")
MAY = "select, with, from, values, describe, show, summarize, pivot, explain, and copy (...) to 'file'"
EXPLAIN = "EXPLAIN is allowed for queries only, because EXPLAIN ANALYZE runs the statement"
COPY_WITHIN = 'COPY is allowed as the whole statement only; a column of that name is written "copy"'


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        yield made


@pytest.mark.parametrize(
    "query",
    [
        "select 1",
        "SELECT 1",
        "with t as (select 1) from t",
        "from jobs",
        "values (1)",
        "describe jobs",
        "show tables",
        "summarize jobs",
        "(select 1)",
        "pivot jobs on state",
        "PIVOT jobs ON state",
        "with t as (pivot jobs on state) from t",
        "from (pivot jobs on state)",
        "select * from (pivot jobs on state)",
        "(from (pivot jobs on state))",
        "explain select 1",
        "EXPLAIN SELECT 1",
        "explain analyze select 1",
        "explain (analyze, format json) select 1",
        "explain (format json) from jobs",
        "explain (select 1)",
        "explain with t as (select 1) from t",
        'select "copy" from jobs',
        "select copy, 1 from jobs",
        "select 1 -- copy (select 1) to 'x'",
    ],
)
def test_what_only_reads_may_run(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    check_query(connection, query, STATE)
    check_reads(connection, query)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("insert into jobs values (1)", f"INSERT is not allowed here: SQL only reads harvester's state; use {MAY}"),
        ("drop table jobs", f"DROP is not allowed here: SQL only reads harvester's state; use {MAY}"),
        ("select 1; select 2", "give one SQL statement, given 2; run the others as separate commands"),
        ("", "give one SQL statement, given 0; run the others as separate commands"),
        ("explain insert into jobs values (1)", EXPLAIN),
        ("explain analyze drop table jobs", EXPLAIN),
        ("explain verbose drop table jobs", None),
        ("explain (analyze, format json) drop table jobs", EXPLAIN),
        ("with t as (copy (select 1) to 'x.csv') select * from t", COPY_WITHIN),
        ("with t as (copy jobs to 'x.csv') select * from t", COPY_WITHIN),
        ("copy jobs from 'x.csv'", "COPY ... FROM is not allowed here: SQL only reads; use select * from 'file'"),
        ("copy jobs to x", None),
        ("copy (select 1) to (concat('a', 'b'))", "COPY ... TO ( is not allowed here: write the file's name in single quotes"),
        (
            "copy (select 1) to 'o' (format csv, FILENAME_PATTERN 'a')",
            "COPY's option filename_pattern is not allowed here, because it can name files elsewhere",
        ),
        (
            "copy (select 1) to '/srv/harvester/x.csv'",
            "cannot write to /srv/harvester/x.csv: it lies in harvester's state folder /srv/harvester, which SQL only reads; "
            "name another place",
        ),
    ],
)
def test_what_could_change_the_state_is_refused_with_what_to_do(
    connection: duckdb.DuckDBPyConnection, query: str, says: str | None
) -> None:
    with pytest.raises((QueryError, duckdb.ParserException)) as caught:
        check_query(connection, query, STATE)
    assert says is None or str(caught.value) == says


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("copy (select 1) to '/tmp/x.csv'", "COPY is not allowed here: SQL only reads the tables of the ledger and results('JOB')"),
        ("set threads = 1", "SET is not allowed here: SQL only reads the tables of the ledger and results('JOB')"),
        ("select 1; select 2", "give one SQL statement, given 2"),
        ("explain analyze copy (select 1) to 'x.csv'", EXPLAIN),
        ("with t as (copy (select 1) to 'x.csv') select * from t", COPY_WITHIN),
        ("select " + "(" * 3000, "the query nests 3,000 brackets; the limit is 500: split it into WITH parts"),
        (
            "select 1" + " union all select 1" * 5000,
            "the query has 5,000 set operations; the limit is 1,000: write the values as one VALUES",
        ),
        ("selec 1", 'Parser Error: syntax error at or near "selec"'),
    ],
)
def test_in_the_sandbox_nothing_is_written_anywhere(connection: duckdb.DuckDBPyConnection, query: str, says: str) -> None:
    with pytest.raises(QueryError) as caught:
        check_reads(connection, query)
    assert caught.value.message == says


def test_brackets_within_text_and_as_many_as_may_be_are_taken(connection: duckdb.DuckDBPyConnection) -> None:
    check_reads(connection, "select '" + "(" * 3000 + "' -- " + "(" * 3000)
    check_query(connection, "select " + "(" * 500 + "1" + ")" * 500, STATE)
    check_query(connection, "select 1" + " union all select 1" * 1000, STATE)


@pytest.mark.parametrize(
    "target",
    ["/srv/harvester", "/srv/harvester/x", "/srv", "/", "/srv/other/../harvester/x"],
)
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_no_way_of_writing_a_path_leads_into_the_state_folder(connection: duckdb.DuckDBPyConnection, target: str, form: str) -> None:
    with pytest.raises(QueryError, match="it lies in harvester's state folder /srv/harvester"):
        check_query(connection, f"copy (select 1) to '{form.format(target)}'", STATE)


@pytest.mark.parametrize("target", ["/srv/harvester-2/x", "/srv/other/x", "s3://srv/harvester/x", "file:///home/x", "it''s.csv"])
def test_a_copy_goes_anywhere_else(connection: duckdb.DuckDBPyConnection, target: str) -> None:
    check_query(connection, f"copy (select 1) to '{target}'", STATE)
    check_query(connection, f"COPY (select 1 from (values (1)) t) TO '{target}'", STATE)


def test_a_quote_within_a_name_is_part_of_it(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="cannot write to /srv/it's/x: it lies in harvester's state folder /srv/it's,"):
        check_query(connection, "copy (select 1) to '/srv/it''s/x'", Path("/srv/it's"))


def test_a_link_is_followed_and_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "link").symlink_to(state)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (tmp_path / "link" / "x", Path("~/state/x")):
        with pytest.raises(QueryError, match="cannot write to"):
            check_target(path, state)
    with pytest.raises(QueryError, match="cannot write to"):
        check_target(state / "x", Path("~/state"))
    check_target(tmp_path / "state-2", state)


def test_tokens_are_those_of_the_query_without_its_comments() -> None:
    assert tokens("select 'ä', \"b\" /* no */ from t -- end") == [
        Token("select", "keyword"),
        Token("'ä'", "string_const"),
        Token(",", "operator"),
        Token('"b"', "identifier"),
        Token("from", "keyword"),
        Token("t", "identifier"),
    ]
