"""Checks that a column identifies rows: no value is null, and none occurs twice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from connectors.base import Source
from connectors.errors import ColumnError, HarvesterError

_BATCH_ROWS = 65_536
_FIRST_FAULT = """
    select id, min(row_id, 2) as row_ids
    from ids
    group by id
    having count(*) > 1 or id is null
    order by row_ids[1]
    limit 1
"""


def check_unique(source: Source, column: str) -> None:
    """Raise `ColumnError` with the first value that is null or there twice, and its rows.

    Reads the one column, in batches; DuckDB groups them within 1 GB of memory and spills to a temporary folder beyond.
    """
    stream = _Stream(source, column)
    schema = pa.schema([pa.field("id", source.schema.field(column).type), pa.field("row_id", pa.int64())])
    with tempfile.TemporaryDirectory(prefix="harvester-") as folder, duckdb.connect() as connection:
        connection.execute(f"set temp_directory = '{folder}'")
        connection.execute("set memory_limit = '1GB'")
        connection.register("ids", pa.RecordBatchReader.from_batches(schema, stream.batches(schema)))
        try:
            faults = connection.execute(_FIRST_FAULT).fetchall()
        except (duckdb.Error, pa.ArrowException) as error:
            if stream.error is not None:
                raise stream.error from error
            raise ColumnError(
                f"column {column} cannot be checked as --id-column: {' '.join(str(error).split())}; choose another"
            ) from error
    for value, row_ids in faults:
        if value is None:
            raise ColumnError(f"--id-column {column} is null in row {row_ids[0]}; choose a column with a value in every row")
        raise ColumnError(
            f"--id-column {column} has {str(value)[:80]!r} in rows {row_ids[0]} and {row_ids[1]}; choose a column whose values are unique"
        )


class _Stream:
    """Keeps the source's own error, which does not survive the way through Arrow's stream."""

    def __init__(self, source: Source, column: str) -> None:
        self._source = source
        self._column = column
        self.error: HarvesterError | None = None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for group in self._source.row_groups():
                for offset in range(0, group.row_count, _BATCH_ROWS):
                    count = min(_BATCH_ROWS, group.row_count - offset)
                    ids = self._source.read(group, offset, count, [self._column])[self._column]
                    first = group.row_start + offset
                    row_ids = pa.array(range(first, first + count), pa.int64())
                    yield from pa.table([ids, row_ids], schema=schema).to_batches()
        except HarvesterError as error:
            self.error = error
            raise
