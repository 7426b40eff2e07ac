"""Which results and tables of the ledger a query reads, so that those alone are fetched."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobs.ledger.store.statements import TABLES
from jobs.sql.fetch import jobs_named, newest_ids, tables_named

KNOWN = ["c-3", "b-2", "a-1"]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("select 1", []),
        ("select * from jobs where id = 'a-1'", []),
        ("select * from results('a-1')", ["a-1"]),
        ("select * from RESULTS ( 'a-1' ) join \"results\"('b-2') using (row_id)", ["b-2", "a-1"]),
        ("select * from results('latest')", ["c-3"]),
        ("select * from results('other')", []),
        ("select 1 -- results('a-1')\n", []),
        ("select results from t", []),
        ("select 'results(''a-1'')'", []),
        ("select * from results(lower('A-1'))", KNOWN),
        ("select * from results('a' || '-1')", KNOWN),
        ("select * from results($$a-1$$)", KNOWN),
        ("select * from results(", KNOWN),
        ("select * from query('from results(''a-1'')')", KNOWN),
        ("select query from t", []),
        ("", []),
    ],
)
def test_the_results_that_a_query_names(query: str, named: list[str]) -> None:
    assert jobs_named(query, KNOWN) == named


def test_nothing_is_the_latest_of_none() -> None:
    assert jobs_named("select * from results('latest')", []) == []


def test_ids_are_the_newest_first() -> None:
    table = pa.table({"id": ["a-1", "c-3", "b-2"], "created_at_s": [1.0, 2.0, 2.0]})
    assert newest_ids(table) == KNOWN
    assert newest_ids(None) == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("select 1", ["jobs"]),
        ("select * from results('a-1')", ["jobs"]),
        ("select count(*) from leases", ["jobs", "leases"]),
        ('select * from ledger."LEASES" join usage using (owner)', ["jobs", "leases", "usage"]),
        ("from query_table('lea' || 'ses')", list(TABLES)),
        ("select * from query('from ' || 'usage')", list(TABLES)),
        ("select estimated_size from duckdb_tables()", list(TABLES)),
    ],
)
def test_the_tables_of_the_ledger_that_a_query_names(query: str, named: list[str]) -> None:
    assert tables_named(query, TABLES) == named
