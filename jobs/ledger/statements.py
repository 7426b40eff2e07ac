"""SQL by name, from ``ledger.sql``."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def statements() -> dict[str, str]:
    """Every ``-- name: NAME`` block of the file."""
    text = files("jobs.ledger").joinpath("ledger.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
