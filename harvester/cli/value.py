"""One value of a table, as a person reads it."""

from __future__ import annotations

from datetime import datetime

from connectors.value import text


def cell(value: object) -> str:
    """As a person reads it."""
    match value:
        case None:
            return ""
        case str():
            return value
        case float():
            return f"{value:.6g}"
        case datetime():
            return value.isoformat(" ", "seconds")
        case _:
            return text(value)
