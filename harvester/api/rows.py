"""Rows read from a server as Arrow record batches, and their conversions to frames, relations and objects."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from harvester.api.errors import HarvesterError, needed
from harvester.api.typed import Typed

M = TypeVar("M")
T = TypeVar("T")
HEAD_ROWS = 10  # that a notebook shows
# Columns of a job's results that record how a row went; the others are those of the table, `row_id` and the task's answer.
RECORD = (
    "status", "error_code", "error_message", "finish_reason", "raw_output", "truncated", "prompt_tokens", "cached_tokens", "output_tokens",
    "preemptions", "attempts", "requests", "parts", "latency_ms", "completed_at",
)  # fmt: skip

Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]


class Rows(Generic[M]):
    """Rows of a job or a query, read lazily: each read sends a new request to the server.

    `batches`, iteration and Arrow's stream protocol hold one batch in memory; `arrow`, `df`, `pl` and `duckdb` hold all rows. A read
    resumes after a broken connection. It raises `RefusedError` if the rows changed meanwhile, `UnreachableError` after
    several breaks without a batch in between.
    """

    def __init__(self, opened: Callable[[], Opened], model: Any = None) -> None:
        self._opened, self._model = opened, model

    def reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow stream reader."""
        return pa.RecordBatchReader.from_batches(*self._opened())

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._opened()[1]

    def arrow(self) -> pa.Table:
        schema, found = self._opened()
        return pa.Table.from_batches(list(found), schema)

    def df(self) -> Any:
        """A pandas frame. Raises `MissingPackageError` without pandas; so do `pl` and `duckdb`."""
        needed("pandas", "df()")
        return self.arrow().to_pandas()

    def pl(self) -> Any:
        """A polars frame."""
        return needed("polars", "pl()").from_arrow(self.arrow())

    def duckdb(self, connection: Any = None) -> Any:
        """A DuckDB relation on ``connection``, or on DuckDB's default connection. Half floats are floats, decimals over 38 digits text."""
        module = needed("duckdb", "duckdb()")
        table = self.arrow()
        return (connection or module).from_arrow(table.cast(_with(_for_duckdb, table.schema)))

    def errors(self) -> list[dict[str, Any]]:
        """The rows of a job that failed, with ``error_code`` and ``error_message``."""
        return [row for batch in self.batches() for row in dicts(batch) if row.get("status") == "error"]

    def __iter__(self) -> Iterator[M]:
        """Rows as dicts; with a Pydantic model, only the answered rows, as objects of it (see `errors` for the others)."""
        typed = None if self._model is None else Typed(self._model)
        for batch in self.batches():
            for row in dicts(batch):
                if typed is None:
                    yield row  # type: ignore[misc]
                elif row.get("status", "ok") == "ok":
                    yield typed.of(row, batch.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Lets polars, DuckDB, pandas and Arrow read these rows like a table."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def head(self, rows: int = HEAD_ROWS) -> pa.Table:
        """The first ``rows`` rows. Reads no more batches than they need."""
        schema, found = self._opened()
        taken: list[pa.RecordBatch] = []
        while (left := rows - sum(batch.num_rows for batch in taken)) > 0 and (batch := next(found, None)) is not None:
            taken.append(batch.slice(0, left))
        return pa.Table.from_batches(taken, schema)

    def _repr_html_(self) -> str:
        table = self.head()
        shown = [name for name in table.column_names if name not in RECORD or name == "status"]
        title = "".join(f"<th>{html.escape(name)}</th>" for name in shown)
        rows = [row for batch in table.to_batches() for row in dicts(batch)]
        cells = ("".join(f"<td>{html.escape(str(row[name])[:200])}</td>" for name in shown) for row in rows)
        return f"<table><tr>{title}</tr>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


class AsyncRows(Generic[M]):
    """`Rows` for coroutines: ``await rows.df()``, ``async for row in rows``. Arrow is read in a thread."""

    def __init__(self, rows: Rows[M]) -> None:
        self._rows = rows

    async def arrow(self) -> pa.Table:
        return await asyncio.to_thread(self._rows.arrow)

    async def df(self) -> Any:
        return await asyncio.to_thread(self._rows.df)

    async def pl(self) -> Any:
        return await asyncio.to_thread(self._rows.pl)

    async def duckdb(self, connection: Any = None) -> Any:
        return await asyncio.to_thread(self._rows.duckdb, connection)

    async def errors(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._rows.errors)

    async def head(self, rows: int = HEAD_ROWS) -> pa.Table:
        return await asyncio.to_thread(self._rows.head, rows)

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return _in_thread(self._rows.batches)

    def __aiter__(self) -> AsyncIterator[M]:
        return _in_thread(partial(iter, self._rows))


async def _in_thread(made: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Iterate asynchronously: each item is fetched in a thread."""
    end = object()
    found = await asyncio.to_thread(made)
    while (one := await asyncio.to_thread(next, found, end)) is not end:
        yield one  # type: ignore[misc]


def dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts. Times are Python's, in microseconds, with or without pandas. Raises `HarvesterError` for years beyond 1 to 9999."""
    try:
        rows: list[dict[str, Any]] = batch.cast(_with(_micro, batch.schema), safe=False).to_pylist()
    except (OverflowError, ValueError, pa.ArrowException) as error:
        raise HarvesterError(f"the rows hold what Python has no value for ({error}); read them with arrow(), df() or pl()") from error
    return rows


Leaf = Callable[[pa.DataType], pa.DataType]


def _with(leaf: Leaf, schema: pa.Schema) -> pa.Schema:
    """The schema with ``leaf`` applied to each type, and to those inside of lists, maps and structs."""
    return pa.schema([part.with_type(_nested(leaf, part.type)) for part in schema], schema.metadata)


def _nested(leaf: Leaf, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_nested(leaf, part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nested(leaf, kind.key_type), _nested(leaf, kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_nested(leaf, kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_nested(leaf, kind.value_type), kind.list_size)
    return leaf(kind)


def _micro(kind: pa.DataType) -> pa.DataType:
    """``kind`` with microseconds in place of nanoseconds."""
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _for_duckdb(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.string() if pa.types.is_decimal256(kind) else kind
