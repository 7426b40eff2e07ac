"""For how long a job has made no progress. A rate cannot say that of a job which never had one, nor of one whose rate is forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.forecast.rate import SPAN_S, SPANS

LEFT_SHARE = 0.1  # of the time left: who makes no progress for so long is late. A row counts at its end, and may take minutes
MIN_S, MAX_S = 20.0, SPANS * SPAN_S  # bounds of that time; after the most the job's rate holds no progress either


@dataclass(slots=True)
class Stall:
    """``seconds`` without progress, seen in looks at a job. ``rows`` and ``tokens``: as of the last look; None before the first."""

    seconds: float = 0.0
    rows: int | None = None
    tokens: int = 0

    def look(self, rows: int, tokens: int, elapsed_s: float) -> None:
        """Rows and tokens done by now, ``elapsed_s`` after the last look. Totals that went back (a lease was lost) are no progress."""
        is_same = self.rows is not None and rows <= self.rows and tokens <= self.tokens
        self.seconds = self.seconds + elapsed_s if is_same else 0.0
        self.rows, self.tokens = rows, tokens

    def clear(self) -> None:
        self.seconds, self.rows, self.tokens = 0.0, None, 0


def is_long(stalled_s: float, left_s: float) -> bool:
    """Whether a job without progress for ``stalled_s`` is late, ``left_s`` before its deadline."""
    return stalled_s >= min(MAX_S, max(MIN_S, LEFT_SHARE * left_s))
