"""What may be asked of a source: columns that are there, once each, and rows within a group."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from connectors.base import RowGroup
from connectors.errors import ColumnError, SourceError

MAX_LISTED = 20


def listed(names: Sequence[str]) -> str:
    """Names for a message, at most 20 of them."""
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def check_unique(names: Sequence[str], label: str) -> None:
    """Raise `SourceError` where a column name occurs twice: nobody could say which one a prompt means."""
    double = [name for name, times in Counter(names).items() if times > 1]
    if double:
        raise SourceError(f"{label} has more than one column named {double[0]!r}; give each column a name of its own")


def checked_columns(schema: pa.Schema, columns: Sequence[str] | None, label: str) -> tuple[str, ...]:
    """The columns to read, in the order asked for; all of them for None. Raises `ColumnError` for one that is not there."""
    if columns is None:
        return tuple(schema.names)
    for name in columns:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its columns: {listed(schema.names)}"
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
