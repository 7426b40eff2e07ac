"""One suite over both sinks, then what is particular to parts on disk: atomic, durable, clean after a death."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.base import Sink
from connectors.durable import LEFTOVER_AFTER_S
from connectors.memory import MemorySink
from connectors.parquet.parts import PartsSink
from harvester.errors import DamageError, StorageError
from jobs.storage.mirror import Mirror
from jobs.storage.parts import StoredParts

TABLE = pa.table({"row_id": pa.array([0, 1], pa.int64()), "output": ["a", None]})
OTHER = TABLE.slice(1)
NO_PROCESS = 2**22 + 1  # above the largest process id of Linux
SINKS: dict[str, Callable[[Path], Sink]] = {
    "memory": lambda _: MemorySink(),
    "parts": PartsSink,
    "stored": lambda folder: StoredParts(folder, Mirror(folder.parent, str(folder.parent / "storage"))),
}


@pytest.fixture(params=list(SINKS.values()), ids=list(SINKS))
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return request.param(tmp_path / "results")


@pytest.fixture
def parts(tmp_path: Path) -> PartsSink:
    return PartsSink(tmp_path / "results")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_comes_back_as_it_was_written(sink: Sink) -> None:
    table = TABLE.replace_schema_metadata({"pandas": "{}"})
    sink.write("part-000003", table, {"generation": "2", "ünicode": "✓"})
    assert sink.read("part-000003").equals(table, check_metadata=True)
    assert sink.metadata("part-000003") == {"generation": "2", "ünicode": "✓"}


def test_a_part_without_metadata_has_none_of_its_own(sink: Sink) -> None:
    sink.write("part-000000", TABLE, {})
    assert sink.metadata("part-000000") == {}
    assert sink.read("part-000000").equals(TABLE, check_metadata=True)


def test_a_second_write_replaces_the_first(sink: Sink) -> None:
    sink.write("part-000000", TABLE, {"generation": "0"})
    sink.write("part-000000", OTHER, {"generation": "1"})
    assert sink.read("part-000000").equals(OTHER)
    assert sink.metadata("part-000000") == {"generation": "1"}
    assert list(sink.names()) == ["part-000000"]


def test_names_are_sorted(sink: Sink) -> None:
    assert list(sink.names()) == []
    for name in ("part-000010", "part-000002", "part-000001"):
        sink.write(name, TABLE, {})
    assert list(sink.names()) == ["part-000001", "part-000002", "part-000010"]


def test_a_part_that_is_not_there_has_no_metadata_and_cannot_be_read(sink: Sink) -> None:
    assert sink.metadata("part-000000") is None
    with pytest.raises(StorageError, match=r"part .*part-000000.* does not exist"):
        sink.read("part-000000")


def test_a_part_is_a_parquet_file_that_anything_can_read(parts: PartsSink, tmp_path: Path) -> None:
    parts.write("part-000000", TABLE, {"rows_ok": "1"})
    assert names_in(tmp_path / "results") == ["part-000000.parquet"]
    assert pq.ParquetFile(tmp_path / "results" / "part-000000.parquet").read().to_pylist() == TABLE.to_pylist()


def test_file_and_folder_are_synced_in_the_order_that_survives_a_power_cut(
    parts: PartsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.write("part-000000", TABLE, {})
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        events.append("fsync " + ("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file"))
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    parts.write("part-000001", TABLE, {})
    assert events == ["fsync file", "replace", "fsync folder"]


@pytest.mark.parametrize("death", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_write_that_dies_before_the_rename_leaves_no_part_and_no_rest(
    parts: PartsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: BaseException
) -> None:
    def die(*_: object) -> None:
        raise death

    parts.write("part-000000", TABLE, {"generation": "0"})
    monkeypatch.setattr(os, "replace", die)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        parts.write("part-000000", OTHER, {"generation": "1"})
    assert names_in(tmp_path / "results") == ["part-000000.parquet"]
    assert parts.metadata("part-000000") == {"generation": "0"}


KILLED_WRITER = """
import os, sys
from pathlib import Path
import pyarrow as pa
from connectors.parquet.parts import PartsSink
os.replace = lambda *_: os._exit(9)
PartsSink(Path(sys.argv[1])).write("part-000000", pa.table({"a": [1]}), {})
"""


def test_sweep_removes_what_a_killed_writer_left_and_nothing_else(parts: PartsSink, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    parts.write("part-000001", TABLE, {})
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, folder], check=False)
    assert killed.returncode == 9
    (left,) = folder.glob(".*")
    assert left.name.startswith(".part-000000.parquet.tmp-")
    assert list(parts.names()) == ["part-000001"]

    living = folder / left.name.replace(f"tmp-{left.name.split('-')[2]}-", f"tmp-{os.getpid()}-")
    stranger = folder / ".notes.tmp-old"
    for path in (living, stranger):
        path.write_text("")
    assert parts.sweep() == (left,)
    assert {path.name for path in folder.iterdir()} == {"part-000001.parquet", living.name, stranger.name}


def test_sweep_takes_a_file_of_another_machine_only_when_it_is_old(parts: PartsSink, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    young = folder / f".part-000000.parquet.tmp-{NO_PROCESS}-0000000000000000"
    old = folder / f".part-000001.parquet.tmp-{NO_PROCESS}-0000000000000000"
    for path in (young, old):
        path.write_text("")
    past = time.time() - LEFTOVER_AFTER_S - 1
    os.utime(old, (past, past))
    assert parts.sweep() == (old,)
    assert young.exists()


def test_sweep_of_a_folder_that_is_not_there_removes_nothing(parts: PartsSink) -> None:
    assert parts.sweep() == ()


@pytest.mark.parametrize(
    ("number", "cause", "advice"),
    [
        (errno.ENOSPC, "no space left on device", "free space on this disk"),
        (errno.EDQUOT, "disk quota exceeded", "free space within the quota"),
        (errno.EROFS, "read-only file system", "choose a folder on a disk that can be written"),
        (errno.EACCES, "permission denied", "give the right to write there"),
        (errno.EIO, "input/output error", "check the disk"),
        (errno.EMFILE, "too many open files", "check the disk and the folder"),
    ],
    ids=errno.errorcode.get,
)
def test_errors_of_the_disk_say_which_file_what_failed_and_what_to_do(
    parts: PartsSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, cause: str, advice: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "results").mkdir()
    with pytest.raises(StorageError) as caught:
        parts.write("part-000000", TABLE, {})
    assert caught.value.message.startswith(f"cannot write {tmp_path}/results/part-000000.parquet: {cause}; {advice}")
    assert names_in(tmp_path / "results") == []


def test_a_disk_that_fills_while_arrow_writes_is_told_the_same_way(
    parts: PartsSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode: real(Path("/dev/full"), "wb") if ".tmp-" in path.name else real(path, mode))
    with pytest.raises(StorageError, match=r"part-000000.parquet: no space left on device; free space"):
        parts.write("part-000000", pa.table({"text": ["x" * 100_000]}), {})
    assert list(parts.names()) == []


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(StorageError, match=r"results/part-000000.parquet: .*; .*"):
        PartsSink(tmp_path / "results").write("part-000000", TABLE, {})


@pytest.mark.parametrize("read", [PartsSink.read, PartsSink.metadata], ids=["read", "metadata"])
def test_a_damaged_part_says_how_to_get_it_written_again(parts: PartsSink, read: Callable[[PartsSink, str], object]) -> None:
    parts.write("part-000000", TABLE, {})
    parts.path("part-000000").write_bytes(b"PAR1 torn")
    with pytest.raises(StorageError, match=r"part-000000.parquet is damaged: .*; stop the server and run: harvester repair"):
        read(parts, "part-000000")


def test_a_flipped_bit_in_a_part_is_damage_or_changes_nothing(parts: PartsSink) -> None:
    table = pa.table({"row_id": range(64), "output": [f"answer {i} {i * 7919}" for i in range(64)]})
    parts.write("part-000000", table, {"rows_ok": "64"})
    whole = parts.path("part-000000").read_bytes()
    footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    chance, damaged = random.Random(20), 0
    for _ in range(500):
        data = bytearray(whole)
        bit = chance.randrange(8 * 4, 8 * footer_at)  # pages and their headers; the footer has no checksum in Parquet
        data[bit // 8] ^= 1 << bit % 8
        parts.path("part-000000").write_bytes(data)
        try:
            assert parts.read("part-000000").equals(table)
        except DamageError:
            damaged += 1
    assert damaged > 400


def test_metadata_that_is_not_as_it_was_written_is_damage(parts: PartsSink) -> None:
    parts.write("part-000000", TABLE, {"rows_ok": "1234567"})
    path = parts.path("part-000000")
    path.write_bytes(path.read_bytes().replace(b"1234567", b"1234566"))
    with pytest.raises(DamageError, match="its metadata does not fit its checksum"):
        parts.metadata("part-000000")


def test_rows_come_part_by_part_with_the_columns_of_all_parts(parts: PartsSink) -> None:
    parts.write("part-000001", TABLE.append_column("took", pa.array([5, None], pa.duration("us"))), {"rows_ok": "1"})
    parts.write("part-000000", OTHER, {})
    schema, batches = parts.stream()
    assert schema == pa.schema([*TABLE.schema, pa.field("took", pa.duration("us"))])
    assert pa.Table.from_batches(batches, schema)["took"].cast(pa.int64()).to_pylist() == [None, 5, None]


def test_no_parts_have_no_columns_and_no_rows(parts: PartsSink) -> None:
    schema, batches = parts.stream()
    assert (schema.names, list(batches)) == ([], [])


@pytest.mark.parametrize(
    ("harm", "told"),
    [(Path.unlink, "part-000001.parquet does not exist"), (lambda path: path.write_bytes(b"PAR1 torn"), "part-000001.parquet is damaged")],
    ids=["removed", "damaged"],
)
def test_a_part_that_goes_while_rows_are_read_is_named(parts: PartsSink, harm: Callable[[Path], object], told: str) -> None:
    for name in ("part-000000", "part-000001"):
        parts.write(name, TABLE, {})
    _, batches = parts.stream()
    assert next(batches).num_rows == 2
    harm(parts.path("part-000001"))
    with pytest.raises(StorageError, match=told):
        next(batches)


def test_a_part_that_is_put_aside_is_in_the_results_no_more(sink: Sink) -> None:
    sink.write("part-000000", TABLE, {})
    sink.put_aside("part-000000")
    assert sink.metadata("part-000000") is None
    assert list(sink.names()) == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "part-000000.parquet"])
def test_a_part_name_is_no_path(parts: PartsSink, name: str) -> None:
    with pytest.raises(AssertionError, match="part name"):
        parts.write(name, TABLE, {})
