"""How long a batch may take: ``24h``, ``90m``, ``1d12h``."""

from __future__ import annotations

import re

from jobs.errors import ParameterError

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_WINDOW = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[wdhms])+")
_PIECE = re.compile(r"([0-9.]+)([wdhms])")
MAX_S = 10 * 365 * 86_400


def parse_window(text: str) -> float:
    """Seconds, above 0 and at most ten years. Raises `ParameterError`."""
    given = text.strip().lower()
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PIECE.findall(given)) if _WINDOW.fullmatch(given) else 0.0
    if not 0.0 < seconds <= MAX_S:
        raise ParameterError(
            f"completion_window {text[:40]!r} is not a duration above 0 and up to ten years; use one like 24h, 90m or 1d12h",
            "completion_window",
        )
    return seconds
