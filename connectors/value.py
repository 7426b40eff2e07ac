"""One value of a table, as JSON or as text."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa


def plain(value: object) -> object:
    """A value as JSON knows it: dates in ISO form, bytes in base64, intervals as ISO durations, NaN and infinities as null.

    A decimal is a number where JSON's readers, which know doubles, read it exactly; else text. Whole ones of 64 bits are numbers.
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
    """On one line."""
    return json.dumps(plain(value), ensure_ascii=False)


def text(value: object) -> str:
    """As a file keeps it: text as it is, anything else as JSON."""
    shown = plain(value)
    return shown if isinstance(shown, str) else dump(shown)
