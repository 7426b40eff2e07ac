"""Results: one row for each input row, its Arrow schema, and parts made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from connectors.text import repaired, storable
from jobs.forecast.lengths import Counted, counted
from jobs.spec import PartStats
from jobs.tasks.answer import result_fields
from jobs.tasks.spec import Task
from jobs.usage import Usage

ROW_ID = "row_id"
# After the input columns and the task's own.
_ENDING = (
    pa.field("status", pa.string()),
    pa.field("error_code", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("raw_output", pa.string()),
    pa.field("finish_reason", pa.string()),
    *(pa.field(name, pa.int64() if name.endswith("_tokens") else pa.int32()) for name in Usage.model_fields),
    pa.field("attempts", pa.int32()),
    pa.field("requests", pa.int32()),
    pa.field("parts", pa.int32()),
    pa.field("latency_ms", pa.float64()),
    pa.field("truncated", pa.bool_()),
    pa.field("completed_at", pa.timestamp("us", tz="UTC")),
)
RESULT_NAMES = frozenset({ROW_ID, *(field.name for field in _ENDING)})  # every result has them, whatever the task


@dataclass(frozen=True, slots=True)
class Row:
    """One finished row. ``values`` holds the task's fields (JSON values only); for an error it is empty or holds what was answered."""

    row_id: int
    values: Mapping[str, object]
    status: Literal["ok", "error"]
    error_code: str | None
    error_message: str | None
    finish_reason: str | None
    usage: Usage
    attempts: int
    latency_ms: float
    truncated: bool
    completed_at_s: float
    raw_output: str | None = None  # the answer as it came, where it is out of shape
    requests: int = 1  # asked of the engine
    parts: int = 1  # that a long text was cut into

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` makes an equal row of."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"usage": dict(self.usage)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Row:
        """Raises `ValueError` for an object that is not a whole row."""
        try:
            return cls(**{**values, "usage": Usage.model_validate(values.get("usage"))})
        except (TypeError, ValidationError) as error:
            raise ValueError(f"not a row: {error}") from error


def kept_names(source_schema: pa.Schema, keep: Sequence[str], task: Task) -> dict[str, str]:
    """Maps each kept input column to its name in the results: its own, or ``input_NAME`` where another result column has that name.

    Names are compared without regard to case, as SQL compares them.
    """
    taken = {name.lower() for name in RESULT_NAMES} | {field.name.lower() for field in result_fields(task)}
    others = {name.lower() for name in source_schema.names}
    names: dict[str, str] = {}
    for name in keep:
        kept = name
        while kept.lower() in taken or (kept != name and kept.lower() in others):
            kept = f"input_{kept}"
        names[name] = kept
        others.add(kept.lower())
        taken.add(kept.lower())
    return names


def result_schema(source_schema: pa.Schema, keep: Sequence[str], task: Task) -> pa.Schema:
    """``row_id``, the kept input columns, the task's fields, then status, usage and times of the row."""
    kept = [source_schema.field(name).with_name(result) for name, result in kept_names(source_schema, keep, task).items()]
    inputs = [pa.field(field.name, field.type) for field in kept]
    return pa.schema([pa.field(ROW_ID, pa.int64()), *inputs, *result_fields(task), *_ENDING])


def holds_exactly(part: pa.Table, row_ids: range) -> bool:
    """Whether a part holds exactly these rows."""
    return bool(part.column(ROW_ID).to_pylist() == list(row_ids))


def part_table(schema: pa.Schema, rows: Sequence[Row], inputs: pa.Table | None) -> pa.Table:
    """A part in ``schema`` (see `result_schema`), sorted by ``row_id``.

    ``inputs`` holds the kept input columns of exactly these rows, by ``row_id``, in the order of the schema; None or no column where
    none is kept.
    """
    ordered = sorted(rows, key=lambda row: row.row_id)
    kept = [] if inputs is None else inputs.columns
    assert all(len(column) == len(ordered) for column in kept), f"{len(kept[0])} input rows for {len(ordered)} results"
    columns = [pa.array([row.row_id for row in ordered], pa.int64())]
    columns += [_input(column, schema.field(1 + index).type) for index, column in enumerate(kept)]
    columns += [_column(ordered, field) for field in list(schema)[1 + len(kept) :]]
    return pa.table(columns, schema=schema)


def _column(rows: Sequence[Row], field: pa.Field) -> pa.Array:
    name = field.name
    if name == "completed_at":
        return pa.array([round(row.completed_at_s * 1e6) for row in rows], pa.int64()).cast(field.type)
    if name in ("error_message", "raw_output"):
        texts = [getattr(row, name) for row in rows]
        return pa.array([None if text is None else storable(text) for text in texts], field.type)
    if name in Usage.model_fields:
        return pa.array([getattr(row.usage, name) for row in rows], field.type)
    if name in RESULT_NAMES:
        return pa.array([getattr(row, name) for row in rows], field.type)
    return pa.array([row.values.get(name) for row in rows], field.type)


def _input(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A kept column as the results hold it: text that is not UTF-8 is repaired, or no SQL engine would read the part."""
    column = pa.chunked_array([repaired(chunk) for chunk in column.chunks], column.type)
    return column if column.type == kind else column.cast(kind)


def answer_lengths(rows: Sequence[Row]) -> tuple[Counted, ...]:
    """Lengths of the rows that one request answered, to predict other rows with prompts of the same length."""
    return counted((row.usage.prompt_tokens, row.usage.output_tokens) for row in rows if row.status == "ok" and row.requests == 1)


def part_stats(table: pa.Table, generation: int, rows_recomputed: int) -> PartStats:
    """What a part holds, as counts."""
    rows_ok = _total(pc.equal(table["status"], "ok"))
    usage: dict[str, Any] = {name: _total(table[name]) for name in Usage.model_fields}
    return PartStats(
        generation=generation,
        rows_ok=rows_ok,
        rows_error=table.num_rows - rows_ok,
        rows_truncated=_total(table["truncated"]),
        rows_recomputed=rows_recomputed,
        rows_cut_off=_total(pc.and_(pc.equal(table["status"], "ok"), pc.fill_null(pc.equal(table["finish_reason"], "length"), False))),
        error_example=_example(table),
        **usage,
    )


def _example(table: pa.Table) -> str | None:
    failed = table.filter(pc.not_equal(table["status"], "ok")).slice(0, 1).to_pylist()
    return f"{failed[0]['error_code']}: {failed[0]['error_message']}" if failed else None


def _total(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())
