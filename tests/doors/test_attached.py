"""A query of a job over a database that DuckDB attaches reads that database, and nothing else of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from connectors.databases.database import Database
from connectors.errors import SourceError
from connectors.open import open_source


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Database]:
    with duckdb.connect(tmp_path / "shop.duckdb") as made:
        made.execute("create table docs as select 'one' as text")
    (tmp_path / "other.txt").write_text("secret")
    with Database.attach(str(tmp_path / "shop.duckdb")) as database:
        yield database


def rows(database: Database, query: str) -> list[dict[str, object]]:
    with database.rows(None, query) as (_, batches):
        return [row for batch in batches for row in batch.to_pylist()]


def test_its_own_tables_are_read(attached: Database) -> None:
    assert rows(attached, "select text from docs") == [{"text": "one"}]


def test_exact_numbers_are_asked_of_an_extension_only_where_it_offers_them(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "shop.duckdb") as made:
        made.execute("create table docs as select 'one' as text")
    with Database.attach(str(tmp_path / "shop.duckdb"), exact=True) as database:
        assert rows(database, "select text from docs") == [{"text": "one"}]


@pytest.mark.parametrize(
    "query",
    [
        "select content from read_text('/proc/self/environ')",
        "from read_text('{folder}/other.txt')",
        "from glob('{folder}/*')",
        "from '{folder}/other.csv'",
        "from 'http://127.0.0.1:9/x.csv'",
        "with t as (copy (select 1) to '{folder}/out.csv') select 1 as text",
        "copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/new.duckdb' as other",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "install httpfs",
        "select 1; select 2",
        "insert into docs values ('two')",
        "select " + "(" * 3000,
    ],
)
def test_nothing_else_is_read_or_written(attached: Database, tmp_path: Path, query: str) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SourceError) as caught:
        rows(attached, query.format(folder=tmp_path))
    assert "\n" not in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_query_that_takes_the_parser_minutes_is_refused(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "shop.duckdb") as made:
        made.execute("create table docs as select 'one' as text")
    with pytest.raises(SourceError, match="nests 3,000 brackets; the limit is 500"):
        open_source(str(tmp_path / "shop.duckdb"), query="select " + "(" * 3000)
