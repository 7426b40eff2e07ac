"""Durations as people write them: ``90m``, ``90min``, ``1d12h``, ``1.5h``."""

from __future__ import annotations

import re

_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_PIECE = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(min|[wdhms])"
_WHOLE = re.compile(rf"(?:{_PIECE}\s*)+")


def seconds_of(text: str) -> float | None:
    """Seconds of a duration; None for a text of another form."""
    given = text.strip().lower()
    if not _WHOLE.fullmatch(given):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PIECE, given))
