"""Values without declared types: the narrowest Arrow type that holds a whole column, and the values in that type."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from typing import Any

import pyarrow as pa

from connectors.base import check_width

_INT64 = range(-(1 << 63), 1 << 63)
_DOUBLE = 1 << 53  # up to here a double holds every integer


class Width(Enum):
    """Type of a column's values so far. Text holds everything: other values are written out as JSON."""

    NULL = pa.null()
    BOOL = pa.bool_()
    INT = pa.int64()  # a double holds each exactly
    LONG = "long"  # a double may not
    FLOAT = pa.float64()
    DATE = pa.date32()
    TIMESTAMP = pa.timestamp("us")
    TIME = pa.time64("us")
    BYTES = pa.binary()
    TEXT = pa.string()

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self is Width.LONG else self.value


_WIDER = {
    frozenset((Width.INT, Width.LONG)): Width.LONG,
    frozenset((Width.INT, Width.FLOAT)): Width.FLOAT,  # not LONG: a double would change its last digits
    frozenset((Width.DATE, Width.TIMESTAMP)): Width.TIMESTAMP,
}


def width_of(value: object) -> Width:
    match value:
        case None:
            return Width.NULL
        case bool():
            return Width.BOOL
        case int():
            return Width.INT if abs(value) <= _DOUBLE else Width.LONG if value in _INT64 else Width.TEXT
        case float():
            return Width.FLOAT
        case bytes():
            return Width.BYTES
        case datetime():
            return Width.TIMESTAMP if value.tzinfo is None else Width.TEXT
        case date():
            return Width.DATE
        case time():
            return Width.TIME
        case _:
            return Width.TEXT


def wider(one: Width, other: Width) -> Width:
    """The narrowest that holds both."""
    if one is other or other is Width.NULL:
        return one
    if one is Width.NULL:
        return other
    return _WIDER.get(frozenset((one, other)), Width.TEXT)


class Columns:
    """Column names in the order first seen, each with the narrowest type for its values. ``label`` names the source in messages."""

    def __init__(self, label: str, names: Iterable[str] = ()) -> None:
        self._label = label
        self._widths: dict[str, Width] = dict.fromkeys(names, Width.NULL)
        self._seen: set[tuple[str, type]] = set()

    def see(self, row: Mapping[str, object]) -> None:
        """Raises `SourceError` for too many columns."""
        for name, value in row.items():
            kind = type(value)
            if (name, kind) in self._seen and kind is not int:  # a later integer may not fit a double or 64 bits
                continue
            self._seen.add((name, kind))
            if name not in self._widths:
                check_width(len(self._widths) + 1, self._label)
            self._widths[name] = wider(self._widths.get(name, Width.NULL), width_of(value))

    @property
    def schema(self) -> pa.Schema:
        """A column of nulls alone is text: its type is unknown."""
        return pa.schema([(name, pa.string() if width is Width.NULL else width.type) for name, width in self._widths.items()])


def batch_of(schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """A batch of ``rows``, whose columns must all be in ``schema`` and no wider. A missing cell is null."""
    return pa.record_batch([_array(field.type, [row.get(field.name) for row in rows]) for field in schema], schema=schema)


def unchecked_text(cells: Sequence[bytes | None]) -> pa.Array:
    """Text as stored, not checked: a cell that is not UTF-8 is an error of its row, not of the source."""
    return pa.array(cells, pa.binary()).view(pa.string())


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if kind == pa.string():
        return unchecked_text([None if value is None else _as_text(value) for value in values])
    if kind == pa.timestamp("us"):  # a date in a timestamp column becomes midnight
        values = [datetime.combine(value, time()) if type(value) is date else value for value in values]
    return pa.array([float(value) for value in values] if kind == pa.float64() and None not in values else values, kind)


def _as_text(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat().encode()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # Surrogates come from half a pair in JSON, or from invalid bytes that a reader kept.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
