"""What is particular to DuckDB: the snapshot, its reuse, its atomicity, and the file that is free again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.base import Source
from connectors.open import open_source
from connectors.parquet.groups import GROUP_ROWS
from harvester.errors import SourceError, StorageError


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.duckdb"
    execute(path, "create table docs as select i as id, 'text ' || i as text from range(40000) t(i)")
    return path


@pytest.fixture
def path(shop: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(shop, tmp_path))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def execute(path: Path, sql: str) -> None:
    with duckdb.connect(path) as connection:
        connection.execute(sql)


def ids(source: Source) -> list[int]:
    return [row for group in source.row_groups() for row in source.read(group, 0, group.row_count, ["id"])["id"].to_pylist()]


def test_a_table_keeps_its_row_order_in_groups_of_16384_rows(path: Path) -> None:
    with open_source(str(path), table="docs") as source:
        assert [group.row_count for group in source.row_groups()] == [GROUP_ROWS, GROUP_ROWS, 40_000 - 2 * GROUP_ROWS]
        assert ids(source) == list(range(40_000))


@pytest.mark.parametrize("table", ["docs", "DOCS", "main.docs", 'other.odd "name"', "v"])
def test_tables_and_views_are_found_in_every_schema(path: Path, table: str) -> None:
    execute(path, 'create schema other; create table other."odd ""name""" as select 1 as id; create view v as select 1 as id')
    with open_source(str(path), table=table) as source:
        assert source.read(source.row_groups()[0], 0, 1, ["id"]).num_rows == 1


def test_the_name_is_that_of_the_table_or_else_of_the_file(path: Path) -> None:
    with open_source(str(path), table="main.docs") as source:
        assert source.name == "docs"
    with open_source(str(path), query="from docs") as source:
        assert source.name == "shop"


def test_the_file_can_be_written_to_while_the_source_is_open(path: Path) -> None:
    with open_source(str(path), table="docs") as source:
        execute(path, "delete from docs")
        assert source.row_count == 40_000
        assert ids(source) == list(range(40_000))


def test_without_a_folder_the_snapshot_goes_away_with_close(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = open_source(str(path), table="docs")
    assert list(tmp_path.glob("harvester-*/snapshot-*.parquet"))
    source.close()
    assert not list(tmp_path.glob("harvester-*"))


def test_a_snapshot_is_used_again_and_the_file_is_not_needed(path: Path, kept: Path) -> None:
    with open_source(str(path), query="from docs order by id desc", snapshot_dir=kept) as source:
        fingerprint = source.fingerprint()
    (made,) = kept.iterdir()
    before = made.stat().st_mtime_ns
    with open_source(str(path), query="from docs order by id desc", snapshot_dir=kept):
        pass
    path.unlink()
    with open_source(str(path), query="from docs order by id desc", snapshot_dir=kept) as source:
        assert source.fingerprint() == fingerprint
        assert ids(source)[:2] == [39_999, 39_998]
    assert [entry.stat().st_mtime_ns for entry in kept.iterdir()] == [before]
    with pytest.raises(SourceError, match="does not exist"):
        open_source(str(path), query="from docs", snapshot_dir=kept)


def test_a_changed_file_gives_a_new_snapshot_but_the_old_one_can_be_asked_for(path: Path, kept: Path) -> None:
    with open_source(str(path), table="docs", snapshot_dir=kept) as source:
        old = source.fingerprint()
    execute(path, "delete from docs where id > 9")
    with open_source(str(path), table="docs", snapshot_dir=kept, fingerprint=old) as source:
        assert (source.fingerprint(), source.row_count) == (old, 40_000)
    with open_source(str(path), table="docs", snapshot_dir=kept) as source:
        assert source.fingerprint() != old
        assert source.row_count == 10
    assert len(list(kept.iterdir())) == 2


def test_table_and_query_are_part_of_the_fingerprint(path: Path, kept: Path) -> None:
    options = (("docs", None), (None, "from docs"), (None, "select id from docs"))
    found = set()
    for table, query in options:
        with open_source(str(path), snapshot_dir=kept, table=table, query=query) as source:
            found.add(source.fingerprint())
    assert len(found) == 3


def test_a_commit_that_is_only_in_the_write_ahead_log_changes_the_fingerprint(path: Path) -> None:
    with open_source(str(path), table="docs") as source:
        before = source.fingerprint()
    stat = path.stat()
    execute(path, "pragma disable_checkpoint_on_shutdown; insert into docs values (40000, 'new')")
    assert Path(f"{path}.wal").stat().st_size > 0
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with open_source(str(path), table="docs") as source:
        assert source.fingerprint() != before


def test_a_death_half_way_leaves_nothing_that_looks_complete(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def die(writer: pq.ParquetWriter, *_: object, **__: object) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", die)
    with pytest.raises(KeyboardInterrupt):
        open_source(str(path), table="docs", snapshot_dir=kept)
    assert written == 2
    assert list(kept.iterdir()) == []


def test_a_snapshot_that_another_reader_put_there_first_stays(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query need not give its rows in the same order twice: both readers must end with the same file."""
    with open_source(str(path), table="docs", snapshot_dir=kept):
        pass
    (first,) = kept.iterdir()
    aside = first.rename(kept / "aside")
    real = pq.ParquetWriter.close

    def close_late(writer: pq.ParquetWriter) -> None:
        real(writer)
        if aside.exists() and not first.exists() and any(kept.glob(".snapshot-*")):
            aside.rename(first)

    inode = aside.stat().st_ino
    monkeypatch.setattr(pq.ParquetWriter, "close", close_late)
    with open_source(str(path), table="docs", snapshot_dir=kept) as source:
        assert source.row_count == 40_000
    assert [entry.stat().st_ino for entry in kept.iterdir()] == [inode]


def test_a_full_disk_is_an_error_of_storage(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    kept.mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*snapshot-.*: no space left on device; free space"):
        open_source(str(path), table="docs", snapshot_dir=kept)
    assert list(kept.iterdir()) == []


@pytest.fixture
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


def test_a_file_that_another_process_writes_is_named_with_that_process(path: Path, writer: subprocess.Popen[str]) -> None:
    with pytest.raises(SourceError, match=rf"is open for writing in another process \(PID {writer.pid}\); close it there"):
        open_source(str(path), table="docs")


def test_a_file_that_this_process_writes_is_refused(path: Path) -> None:
    with duckdb.connect(path), pytest.raises(SourceError, match="is open in this same process with other settings; close it there"):
        open_source(str(path), table="docs")


def test_a_query_sees_no_variable_of_the_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.database.variable", pa.table({"a": [1]}), raising=False)
    with pytest.raises(SourceError, match="Table with name variable does not exist"):
        open_source(str(path), query="from variable")


def test_types_of_every_day_survive(path: Path) -> None:
    sql = """select uuid() as u, 1::hugeint as h, {'a': 1} as s, [1, 2] as l, map {'k': 1} as m, now() as ts, time '10:00' as t,
             'x'::blob as bl, 1.5::decimal(10, 2) as d, 'a'::enum('a', 'b') as e, '{}'::json as j, null as n, date '2024-01-01' as day"""
    with open_source(str(path), query=sql) as source:
        (row,) = source.read(source.row_groups()[0], 0, 1).to_pylist()
    assert (row["s"], row["l"], row["m"], row["e"], row["j"], row["n"]) == ({"a": 1}, [1, 2], [("k", 1)], "a", "{}", None)


def test_a_query_without_end_is_stopped_and_the_file_is_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_UNSEEN_S", 0.2)
    with pytest.raises(SourceError, match="made no progress"):
        open_source(str(path), query="select count(*) from range(1000000000) a, range(1000000000) b where a.range + b.range < 0")
    execute(path, "delete from docs")


def test_a_query_that_gives_no_row_for_long_is_given_longer_than_one_on_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_STALL_S", 0.0)
    with open_source(str(path), query="select count(*) as n from range(10000000) a where a.range % 7 = 0") as source:
        assert source.row_count == 1
