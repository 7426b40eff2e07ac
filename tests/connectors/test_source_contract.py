"""One suite over every source: what `connectors.base.Source` promises."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.base import Source
from connectors.files.stdin import keep_input
from connectors.memory import MemorySource
from connectors.open import open_source
from harvester.errors import ColumnError, SourceError

ROWS = 3_000


def make_table(rows: int = ROWS, mark: str = "") -> pa.Table:
    texts = [None if i % 97 == 0 else f"{mark}text {i} " + "x" * (i % 50) for i in range(rows)]
    score = [i / 7 for i in range(rows)]
    return pa.table({"id": pa.array(range(rows), pa.int64()), "text": pa.array(texts, pa.string()), "score": score})


@dataclass(frozen=True)
class Kind:
    """How to store a table for one kind of source, how to open it, and the table that should be read."""

    store: Callable[[Path, pa.Table], Any]
    open: Callable[[Any], Source]
    expect: Callable[[pa.Table], pa.Table] = lambda table: table


def store_file(folder: Path, table: pa.Table) -> str:
    pq.write_table(table, folder / "docs.parquet", row_group_size=700)
    return str(folder / "docs.parquet")


def store_folder(folder: Path, table: pa.Table) -> str:
    (folder / "docs" / "b").mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(("a.parquet", "b/x.pq", "c.parq")):
        pq.write_table(table.slice(index * 1_000, 1_000), folder / "docs" / name, row_group_size=300)
    pq.write_table(table.slice(0, 0), folder / "docs" / "d.parquet")
    (folder / "docs" / "_SUCCESS").write_text("")
    (folder / "docs" / ".c.parquet.crc").write_text("")
    (folder / "docs" / "_old.parquet").write_text("not one of them")
    return str(folder / "docs")


def store_glob(folder: Path, table: pa.Table) -> str:
    for index in range(3):
        pq.write_table(table.slice(index * 1_000, 1_000), folder / f"docs-{index}.parquet", row_group_size=999)
    pq.write_table(table, folder / "other.parquet")
    return str(folder / "docs-[0-9].parquet")


def store_hive(folder: Path, table: pa.Table) -> str:
    for index, (year, place) in enumerate((("2023", "a%20b"), ("2024", "07"), ("2024", "__HIVE_DEFAULT_PARTITION__"))):
        (folder / "docs" / f"year={year}" / f"place={place}").mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(index * 1_000, 1_000), folder / "docs" / f"year={year}" / f"place={place}" / "0.parquet")
    return str(folder / "docs")


def expect_hive(table: pa.Table) -> pa.Table:
    # Sorted by path, place=07 comes before place=__HIVE...; the order of the rows is that of the table.
    years = pa.array([2023] * 1_000 + [2024] * 2_000, pa.int64())
    return table.append_column("year", years).append_column("place", pa.array(["a b"] * 1_000 + ["07"] * 1_000 + [None] * 1_000))


def store_uri(folder: Path, table: pa.Table) -> str:
    (folder / "with space [1]").mkdir(exist_ok=True)
    return "file://" + store_file(folder / "with space [1]", table).replace(" ", "%20")


def store_fsspec(folder: Path, table: pa.Table) -> str:
    memory = fsspec.filesystem("memory")
    for index in range(2):
        with memory.open(f"{folder}/docs/{index}.parquet", "wb") as file:
            pq.write_table(table.slice(index * 1_500, 1_500), file, row_group_size=400)
    return f"memory:/{folder}/docs"


def keep_stdin(path: str) -> Path:
    with Path(path).open("rb") as stream:
        return keep_input(stream, Path(path).parent / "inputs", name="docs").path


def store_duckdb(folder: Path, table: pa.Table) -> str:
    with duckdb.connect(folder / "docs.duckdb") as connection:
        connection.register("given", table)
        connection.sql("create or replace table docs as select * from given")
    return str(folder / "docs.duckdb")


def store_jsonl(folder: Path, table: pa.Table) -> str:
    lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
    (folder / "docs.jsonl").write_text(lines, encoding="utf-8")
    return str(folder / "docs.jsonl")


def store_gzip(folder: Path, table: pa.Table) -> str:
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(Path(store_jsonl(folder, table)).read_bytes()))
    return str(folder / "docs.jsonl.gz")


def store_csv(folder: Path, table: pa.Table) -> str:
    pcsv.write_csv(table, folder / "docs.csv")
    return str(folder / "docs.csv")


def expect_csv(table: pa.Table) -> pa.Table:
    """CSV has no null text."""
    return table.set_column(1, "text", pc.fill_null(table["text"], ""))


def store_csv_folder(folder: Path, table: pa.Table) -> str:
    (folder / "docs").mkdir(exist_ok=True)
    for index in range(3):
        pcsv.write_csv(table.slice(index * 1_000, 1_000), folder / "docs" / f"{index}.tsv", pcsv.WriteOptions(delimiter="\t"))
    return str(folder / "docs")


def store_arrow(folder: Path, table: pa.Table) -> str:
    with pa.ipc.new_file(folder / "docs.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return str(folder / "docs.arrow")


def store_arrow_stream(folder: Path, table: pa.Table) -> str:
    with pa.ipc.new_stream(folder / "docs.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return str(folder / "docs.arrows")


def store_texts(folder: Path, table: pa.Table) -> str:
    (folder / "docs" / "b").mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(table["text"].to_pylist()):
        (folder / "docs" / ("b" if number >= 2_000 else "") / f"{number:04}.md").write_text(text or "")
    return str(folder / "docs" / "**" / "*.md")


def expect_texts(table: pa.Table) -> pa.Table:
    paths = [f"{'b/' if number >= 2_000 else ''}{number:04}.md" for number in range(table.num_rows)]
    return pa.table({"path": paths, "text": pc.fill_null(table["text"], "")})


def store_sqlite(folder: Path, table: pa.Table) -> str:
    with closing(sqlite3.connect(folder / "docs.sqlite")) as connection, connection:
        connection.execute("drop table if exists docs")
        connection.execute("create table docs (id, text, score)")
        connection.executemany("insert into docs values (?, ?, ?)", list(zip(*table.to_pydict().values(), strict=True)))
    return str(folder / "docs.sqlite")


KINDS = {
    "jsonl": Kind(store_jsonl, open_source),
    "jsonl-gzip": Kind(store_gzip, open_source),
    "csv": Kind(store_csv, open_source, expect_csv),
    "tsv-folder": Kind(store_csv_folder, open_source, expect_csv),
    "arrow-file": Kind(store_arrow, open_source),
    "arrow-stream": Kind(store_arrow_stream, open_source),
    "texts": Kind(store_texts, open_source, expect_texts),
    "standard-input": Kind(store_jsonl, lambda path: open_source(str(keep_stdin(path)))),
    "sqlite-table": Kind(store_sqlite, lambda uri: open_source(uri, table="docs")),
    "duckdb-attached": Kind(store_duckdb, lambda uri: open_source(f"duckdb:{uri}", table="docs")),
    "memory": Kind(lambda _, table: table, lambda table: MemorySource(table, "docs", group_rows=700)),
    "file": Kind(store_file, open_source),
    "folder": Kind(store_folder, open_source),
    "glob": Kind(store_glob, open_source),
    "hive": Kind(store_hive, open_source, expect_hive),
    "file-uri": Kind(store_uri, open_source),
    "fsspec": Kind(store_fsspec, open_source),
    "duckdb-table": Kind(store_duckdb, lambda uri: open_source(uri, table="docs")),
    "duckdb-query": Kind(
        store_duckdb,
        lambda uri: open_source(uri, query="select score, text from docs where id >= 100 order by id"),
        lambda table: table.slice(100).select(["score", "text"]),
    ),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS), scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def stored(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return kind.store(tmp_path_factory.mktemp("source"), make_table())


@pytest.fixture(scope="module")
def source(kind: Kind, stored: Any) -> Iterator[Source]:
    with kind.open(stored) as source:
        yield source


def test_row_groups_tile_the_rows_without_gaps(source: Source) -> None:
    row = 0
    for index, group in enumerate(source.row_groups()):
        assert (group.index, group.row_start) == (index, row)
        assert group.row_count > 0
        row += group.row_count
    assert row == source.row_count


def test_the_groups_together_are_the_table(source: Source, kind: Kind) -> None:
    expected = kind.expect(make_table())
    assert source.schema.remove_metadata() == expected.schema
    assert source.row_count == expected.num_rows
    parts = [source.read(group, 0, group.row_count) for group in source.row_groups()]
    assert all(part.schema == source.schema for part in parts)
    assert pa.concat_tables(parts).equals(expected)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_slices_in_any_order_with_any_columns_equal_the_tables(source: Source, kind: Kind, data: st.DataObject) -> None:
    expected = kind.expect(make_table())
    for _ in range(data.draw(st.integers(1, 4), label="reads")):
        group = data.draw(st.sampled_from(source.row_groups()))
        offset = data.draw(st.integers(0, group.row_count), label="offset")
        count = data.draw(st.integers(0, group.row_count - offset), label="count")
        columns = data.draw(st.none() | st.lists(st.sampled_from(expected.schema.names), min_size=1, unique=True), label="columns")
        found = source.read(group, offset, count, columns)
        assert found.num_rows == count
        assert found.equals(expected.select(columns or expected.schema.names).slice(group.row_start + offset, count))


def test_reading_on_in_slices_gives_every_row_once(source: Source, kind: Kind) -> None:
    expected = kind.expect(make_table())
    found = []
    for group in source.row_groups():
        for offset in range(0, group.row_count, 256):
            found.append(source.read(group, offset, min(256, group.row_count - offset), ["text"]))
    assert pa.concat_tables(found).equals(expected.select(["text"]))


def test_a_column_that_is_not_there_is_named_with_the_nearest_one(source: Source) -> None:
    with pytest.raises(ColumnError, match=r"has no column 'texts'; did you mean 'text'\?"):
        source.read(source.row_groups()[0], 0, 1, ["texts"])


def test_rows_past_the_end_of_a_group_are_refused(source: Source) -> None:
    group = source.row_groups()[0]
    with pytest.raises(SourceError, match="changed since it was read first"):
        source.read(group, 1, group.row_count)


def test_the_name_is_plain(source: Source) -> None:
    assert source.name == "docs"


def test_opened_again_it_has_the_same_fingerprint(kind: Kind, stored: Any, source: Source) -> None:
    with kind.open(stored) as again:
        assert again.fingerprint() == source.fingerprint() == source.fingerprint()


def test_the_fingerprint_changes_with_the_content(kind: Kind, tmp_path: Path) -> None:
    with kind.open(kind.store(tmp_path, make_table())) as source:
        before = source.fingerprint()
    with kind.open(kind.store(tmp_path, make_table(mark="y"))) as source:
        assert source.fingerprint() != before


def test_close_may_be_called_twice(kind: Kind, tmp_path: Path) -> None:
    stored = kind.store(tmp_path, make_table())
    source = kind.open(stored)
    first = source.read(source.row_groups()[0], 0, 10)
    source.close()
    source.close()
    with kind.open(stored) as again:
        assert again.read(again.row_groups()[0], 0, 10).equals(first)


def test_a_table_without_rows_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no rows|no file|is empty"):
        kind.open(kind.store(tmp_path, make_table(0)))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([[1], [2]], names=["a", "a"])
    pq.write_table(table, tmp_path / "x.parquet")
    for make in (lambda: MemorySource(table), lambda: open_source(str(tmp_path / "x.parquet"))):
        with pytest.raises(SourceError, match="more than one column named 'a'"):
            make()


def test_a_file_replaced_by_one_of_the_same_size_and_rows_has_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"text": ["aaaa", "bbbb"]})
    pq.write_table(table, path, use_dictionary=False)
    size, before = path.stat().st_size, open_source(str(path)).fingerprint()
    changed = pa.table({"text": pc.replace_substring(table["text"], "a", "c")})
    pq.write_table(changed, path, use_dictionary=False)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert path.stat().st_size == size
    assert open_source(str(path)).fingerprint() != before
