"""The spool: what a dead holder wrote is there for the next one, whatever byte its death cut the file at."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.errors import StorageError
from jobs.result import Row
from jobs.run.spool.records import Spool, spooled_rows
from jobs.usage import Usage


def row(row_id: int, text: str = "an answer") -> Row:
    return Row(
        row_id=row_id,
        values={"output": text},
        status="ok",
        error_code=None,
        error_message=None,
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, output_tokens=2),
        attempts=1,
        latency_ms=1.5,
        truncated=False,
        completed_at_s=1000.25,
    )


def write(path: Path, steps: list[tuple[int, str | None]]) -> None:
    """Begin a row for each (row_id, None), finish it for each (row_id, text)."""
    spool = Spool(path)
    for row_id, text in steps:
        if text is None:
            spool.begin(row_id)
        else:
            spool.finish(row(row_id, text))
    spool.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "slice-000000.g0.jsonl"


def test_finished_rows_are_there_when_the_spool_is_opened_again(path: Path) -> None:
    write(path, [(7, None), (7, "seven"), (8, None)])
    again = Spool(path)
    assert again.rows == {7: row(7, "seven")}
    assert again.begins == {7: 1, 8: 1}
    again.close()


def test_begins_add_up_over_holders(path: Path) -> None:
    for _ in range(3):
        write(path, [(1, None)])
    again = Spool(path)
    assert again.begins[1] == 3
    again.close()


def test_only_rows_begun_more_than_once_are_recomputed(path: Path) -> None:
    write(path, [(1, None), (2, None), (1, "one")])
    again = Spool(path)
    assert again.recomputed == 0
    again.begin(2)
    again.begin(2)
    again.begin(3)
    assert again.recomputed == 1
    again.close()


def test_a_row_that_was_cancelled_is_begun_and_not_unfinished(path: Path) -> None:
    write(path, [(1, None), (2, None)])
    spool = Spool(path)
    spool.begin(1)
    spool.cancel(1)
    spool.close()
    again = Spool(path)
    assert (again.begins, again.damaged, again.recomputed) == ({1: 2, 2: 1}, 0, 1)
    assert [again.unfinished(row_id) for row_id in (1, 2, 3)] == [1, 1, 0]
    again.close()


@pytest.mark.parametrize("record", [[], [1, 2], ["removed", 1], ["cancelled"], 1, None, "1", {}], ids=repr)
def test_a_whole_record_of_another_kind_is_damage_and_no_row(path: Path, record: object) -> None:
    spool = Spool(path)
    spool._append(record)  # type: ignore[arg-type]
    spool.close()
    again = Spool(path)
    assert (again.rows, again.begins, again.damaged) == ({}, {}, 1)
    again.close()


@pytest.mark.parametrize(
    "text",
    ["two\nlines\r\n", "ünïcödé 漢字 \U0001f600", 'quotes " and \\ ', "\u2028 \x00 \x85", "\ud800"],
    ids=["line ends", "letters", "quotes", "controls", "half a pair"],
)
def test_any_text_comes_back_as_it_was(path: Path, text: str) -> None:
    write(path, [(0, None), (0, text)])
    again = Spool(path)
    assert again.rows[0].values == {"output": text}
    again.close()


steps = st.lists(st.tuples(st.integers(0, 12_345), st.none() | st.text(max_size=12)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps=steps, more=steps, data=st.data())
def test_a_file_cut_at_any_byte_loses_at_most_the_line_that_was_cut(
    steps: list[tuple[int, str | None]], more: list[tuple[int, str | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spool.jsonl"
        write(path, steps)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), label="cut")
        path.write_bytes(whole[:cut])
        pairs = zip(whole.split(b"\n")[1:], whole[:cut].split(b"\n")[1:], strict=False)  # the first line is empty
        survived = steps[: sum(left == full != b"" for full, left in pairs)]
        write(path, more)  # the next holder appends to what is left, and may die too
        again = Spool(path)
        known = survived + more
        assert again.rows == {row_id: row(row_id, text) for row_id, text in known if text is not None}
        assert again.begins == Counter(row_id for row_id, text in known if text is None)
        again.close()


def test_a_cut_row_number_is_not_taken_for_another_row(path: Path) -> None:
    write(path, [(123, None)])
    data = path.read_bytes().rstrip(b"\n")
    for cut in range(1, len(data)):
        path.write_bytes(data[:cut])
        again = Spool(path)
        assert again.begins == {}
        again.close()


def test_bytes_that_are_no_lines_of_a_spool_are_ignored(path: Path) -> None:
    write(path, [(1, None), (1, "one")])
    path.write_bytes(path.read_bytes() + b"\x00" * 64 + b"\n\xff\xfe\n[[]]\n[1, 2]\nnull\n")
    again = Spool(path)
    assert (again.rows, again.begins) == ({1: row(1, "one")}, {1: 1})
    again.close()


def test_a_record_of_an_earlier_version_without_a_checksum_is_computed_again(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"[1]\n{json.dumps(row(1).to_json())}\n")
    again = Spool(path)
    assert (again.rows, again.begins, again.damaged) == ({}, {}, 2)
    again.close()


def test_a_record_of_another_spool_is_not_taken(path: Path) -> None:
    write(path, [(1, None), (1, "one")])
    other = path.with_name("slice-000001.g0.jsonl")
    other.write_bytes(path.read_bytes())
    again = Spool(other)
    assert (again.rows, again.begins) == ({}, {})
    again.close()


def test_a_whole_record_of_other_fields_is_computed_again(path: Path) -> None:
    spool = Spool(path)
    spool._append({**row(1).to_json(), "new": 1})
    spool.close()
    assert spooled_rows(path) == {}


def test_rows_begun_do_not_count_against_themselves_where_a_result_may_be_among_the_damage(path: Path) -> None:
    write(path, [(1, None), (1, None), (2, None), (2, "two")])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + b"#" + whole[-4:])
    again = Spool(path)
    assert (again.begins, again.rows) == ({1: 2, 2: 1}, {})
    assert (again.unfinished(1), again.unfinished(2)) == (0, 0)
    again.close()


def test_a_spool_that_the_disk_cannot_read_is_moved_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, [(1, None), (1, "one")])

    def bad_sector(self: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", bad_sector)
    again = Spool(path)
    assert (again.rows, again.begins) == ({}, {})
    again.close()
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["slice-000000.g0.jsonl", "slice-000000.g0.unreadable"]


def test_a_full_disk_is_a_storage_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(path)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        spool.begin(1)
    monkeypatch.undo()
    spool.close()


def test_a_line_that_the_disk_takes_only_half_of_is_a_storage_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(StorageError, match=r"cannot write .*slice-000000"):
        spool.finish(row(1))
    monkeypatch.undo()
    spool.finish(row(2))
    spool.close()
    again = Spool(path)
    assert 1 not in again.rows
    again.close()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file stands where the folder should")
    with pytest.raises(StorageError, match="cannot open"):
        Spool(tmp_path / "spool" / "slice.jsonl")
