"""The contract of sources and sinks: Arrow tables read by row group, library errors mapped to ours; checks that connectors share."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from connectors.errors import ColumnError, SourceError


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows that a source can read without reading the rows before them.

    ``row_start`` is the ordinal of its first row in the whole source; a row's ordinal is its ``row_id``.
    """

    index: int
    row_start: int
    row_count: int


class Source(Protocol):
    """A table that does not change while it is read. One reader at a time; `close` frees what it holds.

    Every error of the underlying library is raised as `connectors.errors.SourceError` (or `ColumnError`).
    """

    @property
    def name(self) -> str:
        """Short name shown to people: ``docs`` for ``/data/docs.parquet``. Letters, digits and ``-`` only."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def row_count(self) -> int: ...

    def fingerprint(self) -> str:
        """Hex digest that changes when the rows may have changed. Cheap: reads metadata, never rows."""

    def row_groups(self) -> Sequence[RowGroup]:
        """In row order, without gaps, together ``row_count`` rows. Reads metadata only."""

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows ``offset .. offset + count`` of one group, in order; ``count`` rows exactly.

        Reading on from where the last call ended is cheap; going back or skipping costs a scan of the group from its start. Memory
        stays bounded by a few batches, however long the group. Text is returned as stored: invalid UTF-8 is not an error here.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Sink(Protocol):
    """Where results go, in parts that appear whole or not at all.

    A part is a table under a name. `write` returns only when the part is durable; a part written again under the same name replaces
    the first in one step; a reader never sees a torn part. Errors are raised as `connectors.errors.StorageError`.
    """

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None: ...

    def metadata(self, name: str) -> Mapping[str, str] | None:
        """The metadata given to `write` with this part; None if there is no such part."""

    def read(self, name: str) -> pa.Table:
        """All rows. Raises `connectors.errors.DamageError` if they differ from what was written; so does `metadata`."""

    def put_aside(self, name: str) -> None:
        """Take a damaged part out of the results, and keep what is left of it beside them."""

    def names(self) -> Iterator[str]: ...


class Closing:
    """Context manager that calls `close`. `close` may be called twice; here it does nothing."""

    def close(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


MAX_LISTED = 20
MAX_COLUMNS = 16_384  # as many as a sheet of Excel has; without types each takes memory in every batch, and some bytes of a file make one


def listed(names: Sequence[str]) -> str:
    """Names for a message, at most 20 of them."""
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def check_width(columns: int, label: str) -> None:
    """Raise `SourceError` for more columns than a table without declared types may have."""
    if columns > MAX_COLUMNS:
        raise SourceError(f"{label} has more than {MAX_COLUMNS:,} columns, the limit; leave out those that the prompt does not need")


def check_unique(names: Sequence[str], label: str) -> None:
    """Raise `SourceError` if a column name occurs twice: a prompt that names it would be ambiguous."""
    double = [name for name, times in Counter(names).items() if times > 1]
    if double:
        raise SourceError(f"{label} has more than one column named {double[0]!r}; give each column a name of its own")


def checked_columns(schema: pa.Schema, columns: Sequence[str] | None, label: str) -> tuple[str, ...]:
    """The columns to read, in the order asked for; all of them for None. Raises `ColumnError` for one that is not there."""
    if columns is None:
        return tuple(schema.names)
    names = schema.names  # a list that Arrow makes anew at each access
    there = set(names)
    for name in columns:
        if name not in there:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its columns: {listed(names)}"
            raise ColumnError(f"{label} has no column {name!r}; {hint}")
    assert len(set(columns)) == len(columns), f"a column is asked for twice: {columns}"
    return tuple(columns)


def check_span(groups: Sequence[RowGroup], group: RowGroup, offset: int, count: int, label: str) -> None:
    """Raise `SourceError` for rows that the source does not hold (a plan made before the source was replaced)."""
    assert offset >= 0, f"offset={offset}"
    assert count >= 0, f"count={count}"
    if group.index >= len(groups) or groups[group.index] != group or offset + count > group.row_count:
        raise SourceError(
            f"{label} does not hold rows {offset} to {offset + count} of row group {group.index}; it changed since it was read first"
        )
