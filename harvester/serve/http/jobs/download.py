"""A job's results as one file, streamed: Parquet, CSV or JSON lines (`rows_api` has Arrow IPC).

A batch of rows at a time is in memory, of Parquet a row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.parquet.groups import GROUP_ROWS, grouped
from connectors.parquet.parts import PartsSink, read_batches
from connectors.targets.lines import csv_lines, json_lines

Shape = Literal["arrow", "parquet", "csv", "jsonl"]
KINDS: dict[Shape, str] = {
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
}
BATCH_ROWS = 1024


class Pipe:
    """File object for a writer; `taken` returns what was written since its last call."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._bytes += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _batches(sink: PartsSink) -> Iterator[pa.RecordBatch]:
    """All rows, in the order of the parts' names."""
    for part in sink.parts():
        for batch in read_batches(part.path, part.schema.names, BATCH_ROWS):
            yield batch.replace_schema_metadata(None)


def parquet_of(sink: PartsSink) -> Iterator[bytes]:
    pipe = Pipe()
    batches = _batches(sink)
    first = next(batches, None)
    schema = pa.schema([]) if first is None else first.schema
    with pq.ParquetWriter(pa.PythonFile(pipe, "w"), schema, compression="zstd") as writer:
        for table in grouped(schema, chain([] if first is None else [first], batches)):
            writer.write_table(table, row_group_size=GROUP_ROWS)
            yield pipe.taken()
    yield pipe.taken()


def csv_of(sink: PartsSink) -> Iterator[bytes]:
    pipe: Any = Pipe()
    for place, batch in enumerate(_batches(sink)):
        csv_lines(pipe, batch.schema, [batch], header=place == 0)
        yield pipe.taken()


def jsonl_of(sink: PartsSink) -> Iterator[bytes]:
    return ("".join(json_lines(batch)).encode() for batch in _batches(sink))


WRITERS = {"parquet": parquet_of, "csv": csv_of, "jsonl": jsonl_of}
