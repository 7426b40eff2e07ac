"""The whole answer of a query as a file: an Arrow IPC stream, written by the query's own process, without a limit on rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from connectors.durable import storage_error
from jobs.errors import QueryError

PIECE_BYTES = 8 << 20
PIECES_A_LOOK = 8  # pieces between two checks of the disk's free space


def small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of about 8 MiB, each a row or more."""
    if batch.num_rows == 0:
        return
    rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def write_answer(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], min_free_bytes: int) -> int:
    """Write all rows to ``path``; returns their number. Raises `QueryError` where the disk would have less free than ``min_free_bytes``."""
    rows = pieces = 0
    try:
        with path.open("xb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                for piece in small(batch):
                    if pieces % PIECES_A_LOOK == 0 and shutil.disk_usage(path.parent).free < min_free_bytes + PIECES_A_LOOK * PIECE_BYTES:
                        raise QueryError("the answer does not fit on the server's disk; select less")
                    writer.write_batch(piece)
                    pieces, rows = pieces + 1, rows + piece.num_rows
    except OSError as error:
        raise storage_error("keep the answer in", path, error) from error
    return rows
