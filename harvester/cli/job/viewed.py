"""A job's rows as a person wants them first: inputs, answers and errors, without the bookkeeping columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from connectors.text import rows as rows_of
from harvester.cli.table import clip, screen_columns, text_table
from jobs.result import RESULT_NAMES

VIEW_ROWS = 20
ANSWERS, CAUSES = 3, 3  # shown when a job that was watched has ended


def few_columns(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[str]:
    """Names of the columns to show: those of the table and the task, and the error's where a row has one."""
    failed = any(batch.schema.get_field_index("status") >= 0 and "error" in batch["status"].to_pylist() for batch in batches)
    told = ["status", "error_message"] if failed else []
    return [name for name in schema.names if name not in RESULT_NAMES or name in told]


def viewed(batches: Sequence[pa.RecordBatch], schema: pa.Schema, *, is_wide: bool, screen: int | None) -> Iterator[str]:
    """A table of the rows, cut to the screen's columns unless all are wanted."""
    names = schema.names if is_wide else few_columns(batches, schema)
    chosen = pa.schema([schema.field(name) for name in names])
    return text_table(chosen, [batch.select(names) for batch in batches], None if is_wide else screen)


def summary(batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
    """Some answers, then the causes of errors with their counts."""
    rows = rows_of(pa.Table.from_batches(batches)) if batches else []
    answered = [row for row in rows if row["status"] == "ok"][:ANSWERS]
    width = (screen_columns() or 100) - 2
    if answered:
        yield "Answers:"
    for row in answered:
        typed = {name: value for name, value in row.items() if name not in RESULT_NAMES and value is not None}
        told = str(row["output"]) if row.get("output") is not None else ", ".join(f"{name}: {value}" for name, value in typed.items())
        yield f"  {clip(' '.join(told.split()), width - 2)}"
    failed = [row for row in rows if row["status"] == "error"]
    if failed:
        yield "Errors:"
    for code, count in Counter(row["error_code"] for row in failed).most_common(CAUSES):
        first = next(row for row in failed if row["error_code"] == code)  # its message may hold numbers of that row alone
        yield clip(f"  {count:,} x {code}: {' '.join(str(first['error_message']).split())}", width)
