"""Values of a table: as Python has them, as JSON, or as text."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_OUT = "<value out of range: "  # Arrow's text for times that it cannot write
# The limits of DuckDB's dates and timestamps, and its names for them.
_ENDS = {limit * sign: word for limit in ((1 << 31) - 1, (1 << 63) - 1) for sign, word in ((1, "infinity"), (-1, "-infinity"))}
_WHOLE_MICROS = re.compile(r"\.(\d{6})000(?!\d)")
_MAX_HALF = 65504.0
_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As ``to_pylist``, with Python's own times. If Python has none for some of them (nanoseconds, years beyond 9999), all are ISO text.

    A float of 32 or 16 bits is the double with its shortest digits: 19.99, not 19.989999771118164.

    The same with and without pandas: where pandas is installed, Arrow would use its times for nanoseconds.
    """
    column = _shortest(column)
    found = _with_times(column)
    if _with_leaves(column.type, _single) == column.type:
        return found
    return [_mapped(value, column.type, _of_half) for value in found]


def _with_times(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        kind = _with_leaves(column.type, _micro)
        return list((column if kind == column.type else column.cast(kind)).to_pylist())
    except UnicodeDecodeError:
        raise
    except (OverflowError, ValueError):
        told = _with_leaves(column.type, _as_text)
        if told == column.type:
            raise
        return [_mapped(value, column.type, _iso) for value in column.cast(told).to_pylist()]


def _shortest(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column with its floats of 32 bits as doubles, by the fewest digits that tell a float from its neighbours."""
    told = _with_leaves(column.type, _digits)
    return column if told == column.type else column.cast(told).cast(_with_leaves(column.type, _double))


def _digits(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_float32(kind) else kind


def _double(kind: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_float32(kind) else kind


def _single(kind: pa.DataType) -> pa.DataType:
    return pa.float32() if pa.types.is_float16(kind) else kind


def _of_half(value: Any, kind: pa.DataType) -> Any:
    """The double with the fewest digits that tell a float of 16 bits from its neighbours."""
    if not pa.types.is_float16(kind) or not math.isfinite(value):
        return value
    short = (float(f"{value:.{digits}g}") for digits in range(1, 5))
    return next((one for one in short if abs(one) <= _MAX_HALF and struct.pack("e", one) == struct.pack("e", value)), float(f"{value:.5g}"))


def _micro(kind: pa.DataType) -> pa.DataType:
    """A time of nanoseconds in microseconds, as Python counts."""
    if pa.types.is_interval(kind) or getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_interval(kind) or not pa.types.is_temporal(kind):
        return kind
    return pa.int64() if pa.types.is_duration(kind) else pa.string()


def _with_leaves(kind: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """``kind`` with ``other`` of each type in it that holds no others."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _with_leaves(part.type, other), part.nullable, part.metadata) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_leaves(kind.key_type, other), _with_leaves(kind.item_type, other))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_leaves(kind.value_type, other), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_with_leaves(kind.value_type, other))
    return pa.large_list(_with_leaves(kind.value_type, other)) if pa.types.is_large_list(kind) else other(kind)


def _mapped(value: Any, kind: pa.DataType, leaf: Callable[[Any, pa.DataType], Any]) -> Any:
    """``value`` with ``leaf`` of each value in it that holds no others, and is not null."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {part.name: _mapped(value[part.name], part.type, leaf) for part in kind}
    if pa.types.is_map(kind):
        return [(_mapped(key, kind.key_type, leaf), _mapped(item, kind.item_type, leaf)) for key, item in value]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_mapped(item, kind.value_type, leaf) for item in value]
    return leaf(value, kind)


def _iso(value: Any, kind: pa.DataType) -> Any:
    """Arrow's text of a time, or its count of a duration, in Python's format."""
    if isinstance(value, str) and value.startswith(_OUT):
        return _ENDS.get(int(value.removeprefix(_OUT).rstrip(">")), value)
    if pa.types.is_timestamp(kind):
        return _short(value.replace(" ", "T", 1).replace("Z", "+00:00"))
    if pa.types.is_time(kind):
        return _short(value)
    if pa.types.is_duration(kind):
        seconds, rest = divmod(value, _A_SECOND[kind.unit])
        return _short(f"{timedelta(seconds=seconds)}" + (f".{rest:0{len(str(_A_SECOND[kind.unit])) - 1}d}" if rest else ""))
    return value


def _short(told: str) -> str:
    """Drop the nanosecond digits of whole microseconds, as Python writes them, whatever else the column holds."""
    return _WHOLE_MICROS.sub(lambda found: "" if found[1] == "000000" else f".{found[1]}", told)


def plain(value: object) -> object:
    """A value in JSON's types: dates in ISO form, bytes in base64, intervals as ISO durations, NaN and infinities as null.

    A decimal is a number if it is whole and fits 64 bits, or if reading it as a double and writing that gives it again; else text.
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case pa.MonthDayNano():
            return _interval(value)
        case list() | tuple():
            return [plain(item) for item in value]
        case timedelta():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return _number(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)


def _number(value: Decimal) -> int | float | str:
    if not value.is_finite():
        return str(value)
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else format(value, "f")


def _interval(value: Any) -> str:
    """Months, days and nanoseconds, as ISO 8601 writes them: ``P14M3DT4.5S``."""
    months, days, nanoseconds = value
    seconds = Decimal(nanoseconds) / 10**9
    date_part = "".join(f"{number}{unit}" for number, unit in ((months, "M"), (days, "D")) if number)
    time_part = f"T{seconds.normalize():f}S" if nanoseconds else ""
    return f"P{date_part}{time_part}" if date_part or time_part else "PT0S"


def dump(value: object) -> str:
    """The value as JSON on one line."""
    return json.dumps(plain(value), ensure_ascii=False)


def text(value: object) -> str:
    """As a file keeps it: text as it is, a decimal with all its digits, anything else as JSON."""
    shown = format(value, "f") if isinstance(value, Decimal) else plain(value)
    return shown if isinstance(shown, str) else dump(shown)
