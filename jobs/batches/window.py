"""How long a batch may take: ``24h``, ``90m``, ``1d12h``."""

from __future__ import annotations

from jobs.errors import ParameterError
from jobs.forecast.duration import seconds_of

MAX_S = 10 * 365 * 86_400


def parse_window(text: str) -> float:
    """Seconds, above 0 and at most ten years. Raises `ParameterError`."""
    seconds = seconds_of(text) or 0.0
    if not 0.0 < seconds <= MAX_S:
        raise ParameterError(
            f"completion_window {text[:40]!r} is not a duration above 0 and up to ten years; use one like 24h, 90m or 1d12h",
            "completion_window",
        )
    return seconds
