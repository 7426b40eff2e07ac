"""What choosing some rows of a source costs: rows copied, rows read, and where what does not fit lies meanwhile."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.base import RowGroup, Source
from connectors.copied import source as copied
from connectors.copied.snapshot import Origin, write_snapshot
from connectors.databases.database import Database
from connectors.errors import CopyTooLargeError, StorageError
from connectors.memory import MemorySource
from connectors.open import open_source
from connectors.select import BATCH_ROWS, SelectedReading
from connectors.selection import Selection

ROWS = 20_000
TEXT = "a text of some length so that all rows together are large"


def csv_of(path: Path) -> str:
    path.write_text("id,text\n" + "".join(f"{number},{TEXT}\n" for number in range(ROWS)))
    return str(path)


def gzip_of(path: Path) -> str:
    path.write_bytes(gzip.compress(Path(csv_of(path.with_suffix(""))).read_bytes()))
    return str(path)


def jsonl_of(path: Path) -> str:
    path.write_text("".join(f"{json.dumps({'id': number, 'text': TEXT})}\n" for number in range(ROWS)))
    return str(path)


def arrow_of(path: Path) -> str:
    table = pa.table({"id": range(ROWS), "text": [TEXT] * ROWS})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=1_000)
    return str(path)


def parquet_of(path: Path) -> str:
    pq.write_table(pa.table({"id": range(ROWS), "text": [TEXT] * ROWS}), path, row_group_size=5_000)
    return str(path)


def duckdb_of(path: Path) -> str:
    with duckdb.connect(path) as connection:
        connection.execute(f"create table docs as select range as id, '{TEXT}' as text from range({ROWS}) order by id")
    return str(path)


def sqlite_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("create table docs (id, text)")
        connection.executemany("insert into docs values (?, ?)", ((number, TEXT) for number in range(ROWS)))
    return str(path)


SOURCES: dict[str, tuple[str, Callable[[Path], str], dict[str, Any]]] = {
    "csv": ("docs.csv", csv_of, {}),
    "csv.gz": ("docs.csv.gz", gzip_of, {}),
    "jsonl": ("docs.jsonl", jsonl_of, {}),
    "arrow": ("docs.arrow", arrow_of, {}),
    "duckdb": ("docs.duckdb", duckdb_of, {"table": "docs"}),
    "duckdb query": ("docs.duckdb", duckdb_of, {"query": "select * from docs order by id"}),
    "sqlite": ("docs.db", sqlite_of, {"table": "docs"}),
    "query over parquet": ("docs.parquet", parquet_of, {"query": "select * from source"}),
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each copy that was written, in this order."""
    counts: list[int] = []

    def counting(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *about: Any) -> None:
        rows = 0

        def passed() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield batch

        write_snapshot(path, schema, passed(), *about)
        counts.append(rows)

    monkeypatch.setattr(copied, "write_snapshot", counting)
    return counts


def ids(source: Source) -> list[int]:
    with source:
        return [row for group in source.row_groups() for row in source.read(group, 0, group.row_count, ["id"])["id"].to_pylist()]


@pytest.mark.parametrize("name", SOURCES)
def test_a_limit_copies_no_more_rows_than_it_asks_for(tmp_path: Path, written: list[int], name: str) -> None:
    file, make, options = SOURCES[name]
    uri = make(tmp_path / file)
    assert ids(open_source(uri, selection=Selection(limit=10), max_copied_bytes=20_000, **options)) == list(range(10))
    assert written == [10]
    assert ids(open_source(uri, selection=Selection(limit=5_000), **options)) == list(range(5_000))
    with pytest.raises(CopyTooLargeError):
        open_source(uri, selection=Selection(limit=5_000), max_copied_bytes=20_000, **options)


@pytest.mark.parametrize("name", ["csv", "duckdb", "sqlite"])
def test_a_limit_has_the_fingerprint_of_its_source(tmp_path: Path, name: str) -> None:
    file, make, options = SOURCES[name]
    uri = make(tmp_path / file)
    with (
        open_source(uri, selection=Selection(limit=10), **options) as first,
        open_source(uri, selection=Selection(limit=10), **options) as again,
        open_source(uri, selection=Selection(limit=11), **options) as other,
    ):
        assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("name", ["csv", "sqlite"])
def test_a_column_of_the_first_rows_has_the_type_of_all_its_rows(tmp_path: Path, name: str) -> None:
    """Else a trial on ten rows would show a prompt that the job does not have."""
    (tmp_path / "x.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(5_000)) + "none\n")
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("create table docs (id)")
        connection.executemany("insert into docs values (?)", [*((number,) for number in range(5_000)), ("none",)])
    uri, table = (tmp_path / "x.csv", None) if name == "csv" else (tmp_path / "x.db", "docs")
    with open_source(str(uri), table=table, selection=Selection(limit=10)) as source:
        assert (source.row_count, source.schema.field("id").type) == (10, pa.string())


class CountedSource(MemorySource):
    """A table that counts how often it is read."""

    reads = 0

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        self.reads += 1
        return super().read(group, offset, count, columns)


def chosen(source: Source, selection: Selection) -> list[int]:
    with SelectedReading(Origin("docs"), source, selection).rows() as (_, batches):
        return [row for batch in batches for row in batch.column("id").to_pylist()]


def test_a_condition_with_a_limit_reads_no_further_than_the_last_row_that_it_gives() -> None:
    source = CountedSource(pa.table({"id": range(100 * BATCH_ROWS)}), group_rows=10 * BATCH_ROWS)
    assert chosen(source, Selection(where="id % 100 = 7", limit=5)) == [7, 107, 207, 307, 407]
    assert source.reads < 20


CONDITIONS = {
    "a list": "id in (9, 3, 17, 99000)",
    "a long list": f"id in ({', '.join(map(str, range(100_000, 0, -7)))})",
    "a subquery": "id in (select max(id) - 3 * range from source, range(50) group by range)",
    "a query without select": "id in (from (values (90000), (5), (70), (70000)))",
    "an aggregate": "id < (select count(*) / 2 from source)",
    "several": "id % 3 = 1 and (id > 500 or id = 10) and id is not null",
}


@pytest.mark.parametrize("where", CONDITIONS.values(), ids=CONDITIONS.keys())
def test_a_condition_with_a_limit_gives_the_first_rows_whatever_it_is_planned_as(where: str) -> None:
    source = MemorySource(pa.table({"id": range(100_000)}), group_rows=10_000)
    every = chosen(source, Selection(where=where))
    assert every == sorted(every)
    for limit in (1, 3, 40):
        assert chosen(source, Selection(where=where, limit=limit)) == every[:limit]
    assert chosen(source, Selection(where=where, sample=3, seed=1, limit=2)) == chosen(source, Selection(where=where, sample=3, seed=1))[:2]


@pytest.fixture
def no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))


@pytest.mark.usefixtures("no_temporary_folder")
@pytest.mark.parametrize(
    "options",
    [{"selection": Selection(where="id < 9")}, {"selection": Selection(sample=9)}, {"query": "from source limit 9"}],
    ids=["condition", "sample", "query"],
)
def test_the_rows_that_some_are_chosen_from_are_copied_beside_them(tmp_path: Path, options: dict[str, Any]) -> None:
    """The system's temporary folder may be small, or in memory."""
    uri = csv_of(tmp_path / "docs.csv")
    with open_source(uri, snapshot_dir=tmp_path / "job", **options) as source:
        assert source.row_count == 9
    assert [path.suffix for path in (tmp_path / "job").iterdir()] == [".parquet"]


def test_what_a_query_writes_beyond_its_memory_is_not_in_the_working_folder(tmp_path: Path) -> None:
    told = "select current_setting('temp_directory') as id"
    uri = csv_of(tmp_path / "docs.csv")
    (found,) = ids(open_source(uri, query=told, snapshot_dir=tmp_path / "job"))
    with Database.attach(duckdb_of(tmp_path / "docs.duckdb"), tmp_path / "job") as database, database.rows(None, told) as (_, batches):
        (attached,) = [row for batch in batches for row in batch.column(0).to_pylist()]
    assert all(str(path).startswith(f"{tmp_path / 'job'}/") for path in (found, attached))
    assert len(ids(open_source(uri, selection=Selection(where=f"({told}) like '{tempfile.gettempdir()}/%'", limit=3)))) == 3


def test_a_temporary_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/job: not a directory"):
        open_source(csv_of(tmp_path / "docs.csv"), selection=Selection(sample=3), snapshot_dir=tmp_path / "file" / "job")
