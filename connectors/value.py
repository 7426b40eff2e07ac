"""One value of a table, as JSON or as text."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time


def plain(value: object) -> object:
    """A value as JSON knows it: dates in ISO form, bytes in base64, decimals as text, NaN and infinities as null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)


def dump(value: object) -> str:
    """On one line."""
    return json.dumps(plain(value), ensure_ascii=False)


def text(value: object) -> str:
    """As a file keeps it: text as it is, anything else as JSON."""
    shown = plain(value)
    return shown if isinstance(shown, str) else dump(shown)
