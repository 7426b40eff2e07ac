"""Sources and frames, as users have them, whose rows were once changed or lost without an error."""

from __future__ import annotations

import datetime as dt
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import SourceError
from connectors.open import open_source
from connectors.parquet.parts import PartsSink
from connectors.paths.files import find
from connectors.paths.location import locate
from connectors.paths.marks import TableFormat
from connectors.selection import Selection
from connectors.text import rows
from harvester.api.errors import HarvesterError
from harvester.api.frames import as_file
from harvester.api.uploads import files_of
from jobs.sql.query import batches, connect, run
from jobs.storage.folder import StateFolder


def read(path: Path, **chosen: Any) -> list[dict[str, Any]]:
    with open_source(str(path), **chosen) as source:
        return [dict(row) for group in source.row_groups() for row in rows(source.read(group, 0, group.row_count))]


def table_with_a_log(root: Path) -> None:
    """A folder like a Delta table; among its files is one that the table's log has dropped."""
    (root / "events" / "_delta_log").mkdir(parents=True)
    (root / "events" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    for name in ("old", "new"):
        pq.write_table(pa.table({"text": [name]}), root / "events" / f"{name}.parquet")


@pytest.mark.parametrize("glob", ["*/*.parquet", "**/*.parquet", "ev*/*.parquet"])
def test_a_glob_that_begins_above_a_table_with_a_log_is_refused(tmp_path: Path, glob: str) -> None:
    table_with_a_log(tmp_path)
    with pytest.raises(SourceError, match=TableFormat.DELTA):
        read(tmp_path / glob)


@pytest.mark.parametrize("what", ["events/*.parquet", ".", "*/*.parquet", "events"])
def test_the_files_of_a_table_with_a_log_are_not_uploaded_one_by_one(tmp_path: Path, what: str) -> None:
    table_with_a_log(tmp_path)
    with pytest.raises(HarvesterError, match="is a table with a log"):
        files_of(tmp_path / what)


@pytest.mark.parametrize("what", ["*", "y=*", "."])
def test_an_upload_has_the_files_that_a_server_would_read_there(tmp_path: Path, what: str) -> None:
    root, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    for path in (root / "top.parquet", root / "y=1" / "a.parquet", elsewhere / "b.parquet"):
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"a": [1]}), path)
    (root / "y=2").symlink_to(elsewhere)
    given = root / what
    assert [str(file) for file in files_of(given)[1]] == [file.path for file in find(locate(str(given)))[1]]


def test_results_keep_their_columns_where_the_state_folder_is_named_like_a_partition(tmp_path: Path) -> None:
    root = tmp_path / "lang=en" / "state"
    part = pa.table({"row_id": [0, 1], "lang": ["de", "fr"]})
    PartsSink(StateFolder(root).results("docs-1a2b")).write("part-000000", part, {})
    with connect(root, lambda name: None) as connection:
        found = [row for batch in batches(run(connection, root, "select * from results('docs-1a2b')")) for row in batch.to_pylist()]
    assert found == part.to_pylist()


def test_whole_numbers_of_a_workbook_have_no_fraction_beside_text_and_as_headers(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for line in [["sku", 2024, "share"], [1001, 1, 0.5], ["A-12", 2, 2]]:
        book.active.append(line)
    book.save(tmp_path / "s.xlsx")
    assert read(tmp_path / "s.xlsx") == [{"sku": "1001", "2024": 1, "share": 0.5}, {"sku": "A-12", "2024": 2, "share": 2.0}]


@pytest.mark.parametrize("first", ["sep=;\r\n", "\ufeffsep=;\n", '"sep=;"\n', "\nSEP=;\n"])
def test_a_first_line_that_tells_the_delimiter_is_no_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "e.csv").write_text(first + "id;text, and more\n1;a,b,c\n2;sep=,\n", encoding="utf-8")
    assert read(tmp_path / "e.csv") == [{"id": 1, "text, and more": "a,b,c"}, {"id": 2, "text, and more": "sep=,"}]


@pytest.mark.parametrize("first", ["sep=", "sep=x", "sep;other"])
def test_a_header_that_only_looks_like_one_is_a_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "e.csv").write_text(f"{first}\n" + ";".join("1" * len(first.split(";"))) + "\n", encoding="utf-8")
    assert list(read(tmp_path / "e.csv")[0]) == first.split(";")


def test_a_query_of_sqlite_that_gives_other_rows_each_time_is_asked_once(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.execute("create table t(v)")
        connection.executemany("insert into t values(?)", [(i if i % 2 else "txt",) for i in range(100)])
    for number in range(20):
        assert len(read(tmp_path / "s.db", query=f"select v from t order by random() limit 3 -- {number}")) == 3


def test_values_of_duckdb_that_arrow_does_not_have_are_text(tmp_path: Path) -> None:
    values = "340282366920938463463374607431768211455::uhugeint u, '01:02:03+05'::timetz z, '101'::bit b"
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute(f"create table t as select {values}")
    assert read(tmp_path / "d.duckdb", table="t") == [{"u": "340282366920938463463374607431768211455", "z": "01:02:03+05", "b": "101"}]


def test_values_within_lists_structs_and_maps_of_duckdb_that_arrow_does_not_have_are_text(tmp_path: Path) -> None:
    bits = "['101'::bit, null] a, {'x': '1'::bit, 'y\"z': 1} s, map {'k': '0'::bit} m, ['01:02:03+05'::timetz]::timetz[1] t"
    whole = "[[{'b': '11'::bit}]] d, [1::uhugeint] u, union_value(n := '1'::bit) v, ['a'::enum('a')] e"
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute(f"create table t as select {bits}, {whole}")
    assert read(tmp_path / "d.duckdb", table="t") == [
        {
            "a": ["101", None],
            "s": {"x": "1", 'y"z': 1},
            "m": [("k", "0")],
            "t": ["01:02:03+05"],
            "d": [[{"b": "11"}]],
            "u": ["1"],
            "v": "1",
            "e": ["a"],
        }
    ]


def test_a_condition_beside_types_that_duckdb_does_not_have(tmp_path: Path) -> None:
    wide, halves = pa.array([None, None], pa.decimal256(60, 1)), pa.array([[1.5], [2]], pa.list_(pa.float16()))
    large = halves.cast(pa.large_list(pa.float16()))
    pq.write_table(pa.table({"text": ["x", "y"], "emb": halves, "large": large, "wide": wide}), tmp_path / "h.parquet")
    assert [row["text"] for row in read(tmp_path / "h.parquet", selection=Selection(where="text = 'x'"))] == ["x"]


def test_views_within_dictionaries_as_polars_writes_them(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.array(["a"], pa.string_view()))
    with pa.ipc.new_file(str(tmp_path / "f.arrow"), pa.schema([("c", column.type)])) as writer:
        writer.write_table(pa.table({"c": column}))
    assert read(tmp_path / "f.arrow") == [{"c": "a"}, {"c": None}]


def test_times_behind_a_day_in_a_list_of_dicts_stay(tmp_path: Path) -> None:
    with as_file([{"at": dt.date(2024, 1, 1)}, {"at": dt.datetime(2024, 1, 2, 15, 30)}], "frame") as path:  # noqa: DTZ001
        assert [row["at"] for row in read(path)] == [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2, 15, 30)]  # noqa: DTZ001


@pytest.mark.parametrize("rows", [[{"a": 2**70}], [{"a": "\ud83d"}]], ids=["large", "surrogate"])
def test_rows_that_no_table_holds_are_refused_in_one_line(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(HarvesterError, match="cannot be written"), as_file(rows, "frame"):
        pass


@pytest.mark.parametrize("text", ['[{"a":1},', '[\n{"a":1},\n{"a":2},\n'])
def test_an_array_that_was_cut_behind_a_comma_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match="cut"):
        read(tmp_path / "a.json")


def test_a_file_that_is_overwritten_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path, count = tmp_path / "a.parquet", 20_000

    def put(tag: str) -> None:
        table = pa.table({"t": [f"{tag}{number:06}" + "x" * 100 for number in range(count)]})
        pq.write_table(table, path, row_group_size=count, compression="none", use_dictionary=False, write_statistics=False)

    put("old")
    with open_source(str(path)) as source:
        group = source.row_groups()[0]
        source.read(group, 0, 100)
        put("new")
        with pytest.raises(SourceError, match="changed"):
            source.read(group, 100, count - 100)
