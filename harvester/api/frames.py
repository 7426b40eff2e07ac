"""Whatever holds rows, as a file to upload: a path, a frame (pandas, polars, Arrow), a DuckDB relation, a list of dicts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 16_384
READ_BYTES = 1 << 20


def batches_of(frame: Any) -> pa.RecordBatchReader:
    """Rows of ``frame``, a batch at a time. Raises `TypeError` for what holds none."""
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if isinstance(frame, pa.Table):
        return frame.to_reader(BATCH_ROWS)
    if isinstance(frame, list):
        return pa.Table.from_pylist(frame).to_reader(BATCH_ROWS)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame)
    for name in ("to_arrow_reader", "fetch_record_batch"):  # DuckDB, by version
        if hasattr(frame, name):
            return getattr(frame, name)(BATCH_ROWS)
    if hasattr(frame, "to_arrow"):
        return frame.to_arrow().to_reader(BATCH_ROWS)
    raise TypeError(f"a {type(frame).__name__} holds no rows; give a path, a data frame, an Arrow table or a DuckDB relation")


def write_parquet(frame: Any, path: Path) -> None:
    """Write the rows of ``frame`` to ``path``; holds one batch in memory."""
    reader = batches_of(frame)
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
