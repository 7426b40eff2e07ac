"""Batches gathered into row groups: a Parquet file of many small ones is slow to read, and its writer keeps a footer of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

GROUP_ROWS = 16_384
GROUP_BYTES = 64 << 20  # in memory; a group of very long rows ends before it has 16,384 of them


def grouped(schema: pa.Schema, batches: Iterable[pa.RecordBatch], group_bytes: int = GROUP_BYTES) -> Iterator[pa.Table]:
    """The rows in order, in tables of 16,384, or fewer where they reach ``group_bytes``. Holds one table in memory.

    Write each with ``row_group_size=GROUP_ROWS``.
    """
    held: list[Any] = []
    rows = held_bytes = 0
    for batch in batches:
        while rows + batch.num_rows >= GROUP_ROWS:
            yield pa.Table.from_batches([*held, batch.slice(0, GROUP_ROWS - rows)], schema)
            batch = batch.slice(GROUP_ROWS - rows)
            held, rows, held_bytes = [], 0, 0
        if batch.num_rows:
            if batch.get_total_buffer_size() > 2 * batch.nbytes:  # a few rows keep all those in memory that they were read with
                batch = pa.concat_batches([batch])
            held.append(batch)
            rows, held_bytes = rows + batch.num_rows, held_bytes + batch.get_total_buffer_size()
        if held_bytes >= group_bytes:
            yield pa.Table.from_batches(held, schema)
            held, rows, held_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)
