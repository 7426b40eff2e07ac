"""Rows as lines of text: JSON, or CSV. Values that CSV cannot hold are text or JSON in a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa
import pyarrow.csv as pcsv

from connectors.value import dump, text, values


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    columns = [values(column) for column in batch.columns]
    return (f"{dump(dict(zip(batch.schema.names, row, strict=True)))}\n" for row in zip(*columns, strict=True))


def csv_lines(out: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, header: bool = True) -> None:
    """Write the rows, below their names where ``header`` is set. A batch at a time is in memory."""
    flat = pa.schema([field if _fits_csv(field.type) else pa.field(field.name, pa.string()) for field in schema])
    options = pcsv.WriteOptions(include_header=header, quoting_style="needed", quoting_header="needed")
    with pcsv.CSVWriter(out, flat, write_options=options) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([_flat(column) for column in batch.columns], schema=flat))


def _flat(column: pa.Array) -> pa.Array:
    return column if _fits_csv(column.type) else as_text(column)


def as_text(column: pa.Array) -> pa.Array:
    """Each value as a cell of CSV has it."""
    return pa.array([None if value is None else text(value) for value in values(column)], pa.string())


def _fits_csv(kind: pa.DataType) -> bool:
    is_plain = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_date,
    )
    return any(check(kind) for check in is_plain)
