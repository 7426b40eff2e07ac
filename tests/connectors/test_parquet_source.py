"""What is particular to Parquet: schemas that must agree, files that change, memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from connectors.errors import SourceAwayError
from connectors.open import open_source
from connectors.parquet.cursor import BATCH_BYTES
from connectors.parquet.source import ParquetSource
from connectors.paths.files import DataFile
from connectors.paths.location import Location
from connectors.text import texts
from harvester.errors import SourceError


def write(path: Path, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"id": [1]}, r"b.parquet has no column 'text', which .*a.parquet has;"),
        ({"id": [1], "text": ["b"], "more": [1]}, r"b.parquet has a column 'more', which .*a.parquet has not;"),
        ({"id": ["1"], "text": ["b"]}, r"b.parquet: column 'id' is string, in .*a.parquet it is int64;"),
    ],
    ids=["missing", "new", "type"],
)
def test_files_whose_columns_differ_are_refused_with_file_and_column(tmp_path: Path, other: dict[str, object], message: str) -> None:
    write(tmp_path / "a.parquet", id=[1], text=["a"])
    write(tmp_path / "b.parquet", **other)
    with pytest.raises(SourceError, match=message):
        open_source(str(tmp_path))


def test_columns_are_matched_by_name_not_by_place(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], text=["a"])
    write(tmp_path / "b.parquet", text=["b"], id=[2])
    with open_source(str(tmp_path)) as source:
        assert [source.read(group, 0, 1).to_pylist()[0] for group in source.row_groups()] == [
            {"id": 1, "text": "a"},
            {"id": 2, "text": "b"},
        ]


def test_views_are_read_as_the_types_that_they_are_views_of(tmp_path: Path) -> None:
    """Polars writes such columns; Arrow's `take` does not support a table of views."""
    lists = pa.array([["x"], []], pa.list_(pa.string_view()))
    write(tmp_path / "a.parquet", text=pa.array(["a", "b"], pa.string_view()), raw=pa.array([b"1", None], pa.binary_view()), tags=lists)
    write(tmp_path / "b.parquet", text=["c"], raw=[b"2"], tags=[["y"]])
    with open_source(str(tmp_path)) as source:
        assert source.schema.types == [pa.string(), pa.binary(), pa.list_(pa.string())]
        whole = pa.concat_tables([source.read(group, 0, group.row_count) for group in source.row_groups()])
    assert whole.take([2, 0]).to_pylist() == [{"text": "c", "raw": b"2", "tags": ["y"]}, {"text": "a", "raw": b"1", "tags": ["x"]}]


@pytest.mark.parametrize("nulls_first", [True, False])
def test_a_column_that_is_all_null_in_one_file_takes_the_type_of_the_others(tmp_path: Path, nulls_first: bool) -> None:
    write(tmp_path / "a.parquet", text=pa.nulls(1) if nulls_first else ["b"])
    write(tmp_path / "b.parquet", text=["b"] if nulls_first else pa.nulls(1))
    with open_source(str(tmp_path)) as source:
        assert source.schema.field("text").type == pa.string()
        parts = [source.read(group, 0, 1) for group in source.row_groups()]
        assert pa.concat_tables(parts)["text"].to_pylist() == ([None, "b"] if nulls_first else ["b", None])


def test_files_come_in_sorted_path_order(tmp_path: Path) -> None:
    for name in ("c.parquet", "b/z.parquet", "a.parquet", "b/y.parquet"):
        write(tmp_path / name, name=[name])
    with open_source(str(tmp_path)) as source:
        found = [source.read(group, 0, 1)["name"][0].as_py() for group in source.row_groups()]
    assert found == ["a.parquet", "b/y.parquet", "b/z.parquet", "c.parquet"]


def test_partition_columns_that_differ_between_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "year=1" / "a.parquet", id=[1])
    write(tmp_path / "b.parquet", id=[1])
    with pytest.raises(SourceError, match="differ in the partition column 'year'"):
        open_source(str(tmp_path))


def test_a_column_in_the_file_wins_over_the_name_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "id=7" / "a.parquet", id=[1])
    with open_source(str(tmp_path)) as source:
        assert source.read(source.row_groups()[0], 0, 1).to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("glob", ["year=*/x.parquet", "year=*", "*/*.parquet"])
def test_partition_columns_come_along_with_a_glob(tmp_path: Path, glob: str) -> None:
    for year in (2023, 2024):
        write(tmp_path / f"year={year}" / "x.parquet", id=[1])
    with open_source(str(tmp_path / glob)) as source:
        assert [source.read(group, 0, 1, ["year"]).to_pylist() for group in source.row_groups()] == [[{"year": 2023}], [{"year": 2024}]]


def test_a_column_name_with_a_dot_is_one_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["x"], "a": [{"b": 1, "c": 2}]}), tmp_path / "x.parquet")
    with open_source(str(tmp_path / "x.parquet")) as source:
        assert source.read(source.row_groups()[0], 0, 1, ["a"]).to_pylist() == [{"a": {"b": 1, "c": 2}}]
        assert source.read(source.row_groups()[0], 0, 1, ["a.b"]).to_pylist() == [{"a.b": "x"}]


def test_invalid_utf8_is_read_as_it_is_stored(tmp_path: Path) -> None:
    bytes_ = pa.array([b"ok", b"\xff\xfe"], pa.binary())
    write(tmp_path / "x.parquet", text=pa.StringArray.from_buffers(2, *bytes_.buffers()[1:]))
    with open_source(str(tmp_path / "x.parquet")) as source:
        first, second = texts(source.read(source.row_groups()[0], 0, 2)["text"])
    assert first == "ok"
    assert getattr(second, "code", None) == "not_utf8"


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_changes_under_the_reader_is_noticed_when_it_is_opened_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.parquet"
    write(path, id=list(range(100)))
    with open_source(str(path)) as source:
        group = source.row_groups()[0]
        source.read(group, 50, 1)
        if how == "replaced":
            write(path, id=list(range(100, 200)))
            os.utime(path, ns=(1, 1))
        else:
            path.unlink()
        if how == "removed":
            assert source.read(group, 51, 1)["id"].to_pylist() == [51], "the open file is still there"
        with pytest.raises(SourceError, match=r"changed while it was read|no longer exists"):
            source.read(group, 0, 1)


def test_a_damaged_page_is_an_error_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write(path, text=[f"text {i}" * 50 for i in range(2000)])
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[4:2000] = os.urandom(1996)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with (
        open_source(str(path)) as source,
        pytest.raises(SourceError, match=r"x.parquet is (not Parquet, or is )?damaged: .*; write it again"),
    ):
        source.read(source.row_groups()[0], 0, 2000)


def test_a_long_row_group_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """48 MB of text in one row group; what Arrow holds at once stays below a quarter of it."""
    path = tmp_path / "x.parquet"
    rows, text_bytes = 24_000, 2_000
    random = os.urandom(rows * text_bytes // 2).hex()
    text = [random[i * text_bytes : (i + 1) * text_bytes] for i in range(rows)]
    pq.write_table(pa.table({"text": text}), path, row_group_size=rows, compression="none", use_dictionary=False)
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), 0
    with open_source(str(path)) as source:
        group = source.row_groups()[0]
        for offset in range(0, rows, 250):
            assert source.read(group, offset, 250).num_rows == 250
            peak = max(peak, pool.bytes_allocated() - before)
    assert peak < 3 * BATCH_BYTES


def test_an_object_store_may_give_a_files_time_in_seconds_or_finer() -> None:
    store = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    listed = fs.FileInfo("a/x.parquet", fs.FileType.File, size=9, mtime_ns=5_400_000_000)
    asked = fs.FileInfo("a/x.parquet", fs.FileType.File, size=9, mtime_ns=5_000_000_000)
    later = fs.FileInfo("a/x.parquet", fs.FileType.File, size=9, mtime_ns=6_000_000_000)
    assert DataFile.of(store, listed, "x.parquet") == DataFile.of(store, asked, "x.parquet") != DataFile.of(store, later, "x.parquet")


class Flaky(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files whose reading fails while the network is away."""

    is_away = False

    def open(self, *given: Any, **named: Any) -> Any:
        file = super().open(*given, **named)
        read = file.read

        def failing(*size: int) -> bytes:
            if self.is_away:
                raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")
            return bytes(read(*size))

        file.read = failing
        return file


def test_a_row_group_is_read_on_after_the_network_was_away(tmp_path: Path) -> None:
    table = pa.table({"text": [os.urandom(1000).hex() for _ in range(2048)]})
    pages = {"data_page_size": 100_000, "write_batch_size": 32, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2048, **pages)
    files = Flaky(skip_instance_cache=True)
    source = ParquetSource(Location(fs.PyFileSystem(fs.FSSpecHandler(files)), str(tmp_path / "a.parquet"), "s3://b/a.parquet"))
    (group,) = source.row_groups()
    assert source.read(group, 0, 256).num_rows == 256

    def read_on() -> int:
        for at in range(256, 2048, 256):
            try:
                source.read(group, at, 256)
            except SourceAwayError:
                return at
        raise AssertionError("all was read at once")

    files.is_away = True
    at = read_on()
    files.is_away = False
    assert source.read(group, at, 256).column("text").to_pylist() == table.column("text")[at : at + 256].to_pylist()


def test_a_row_group_of_embeddings_is_read_however_many_values_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is stored, so reading some rows takes what they take. Equal values cost no bytes: those are counted."""
    monkeypatch.setattr("connectors.parquet.pages.MAX_NESTED_VALUES", 1 << 16)
    measured = np.random.default_rng(0).random(500 * 768, dtype=np.float32)
    for name, values in (("measured", measured), ("zeros", np.zeros_like(measured))):
        write(tmp_path / name / "a.parquet", text=["a"] * 500, vector=pa.FixedSizeListArray.from_arrays(pa.array(values), 768))
    with open_source(str(tmp_path / "measured")) as source:
        assert source.read(source.row_groups()[0], 0, 256)["vector"][255].as_py() == measured.reshape(500, 768)[255].tolist()
    with open_source(str(tmp_path / "zeros")) as source, pytest.raises(SourceError, match=r"'vector.list.element' .* leave this column"):
        source.read(source.row_groups()[0], 0, 256)
