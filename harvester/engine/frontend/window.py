"""The latest values of a measure, for who looks at what happens now; `/metrics` has the counts of always."""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 60.0
MOST = 4096


class Recent:
    """Values of the last ``WINDOW_S``, at most the ``MOST`` newest. Noting one costs an append."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MOST)  # when, value

    def note(self, value: float, now_s: float) -> None:
        self._values.append((now_s, value))

    def quantiles(self, now_s: float) -> dict[str, float] | None:
        """``count``, ``p50`` and ``p99``; None where there is no value of late."""
        while self._values and self._values[0][0] < now_s - WINDOW_S:
            self._values.popleft()
        if not self._values:
            return None
        ordered = sorted(value for _, value in self._values)
        return {"count": len(ordered), "p50": _at(ordered, 0.5), "p99": _at(ordered, 0.99)}


def _at(ordered: list[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
