"""The whole answer of a query, as a file: in small pieces, never onto the last of the disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connectors.errors import StorageError
from jobs.errors import QueryError
from jobs.sql import spool

SCHEMA = pa.schema([("text", pa.string())])


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch([[f"row {number}" for number in range(rows)]], schema=SCHEMA)


def test_all_rows_are_written_in_pieces_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PIECE_BYTES", 1000)
    path = tmp_path / "answer.arrow"
    assert spool.write_answer(path, SCHEMA, [batch(500), batch(0), batch(3)], 0) == 503
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        pieces = list(stream)
    assert max(piece.nbytes for piece in pieces) < 1500
    assert [row for piece in pieces for row in piece["text"].to_pylist()] == batch(500)["text"].to_pylist() + batch(3)["text"].to_pylist()


def test_an_answer_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"^the answer does not fit on the server's disk; select less$"):
        spool.write_answer(tmp_path / "answer.arrow", SCHEMA, [batch(3)], 1 << 60)


def test_an_answer_that_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "answer.arrow"
    path.write_bytes(b"another's")
    with pytest.raises(StorageError, match=f"^cannot keep the answer in {path}: file exists"):
        spool.write_answer(path, SCHEMA, [batch(3)], 0)
    assert path.read_bytes() == b"another's"
