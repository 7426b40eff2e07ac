"""How fast a job moves: rows and tokens over the last minute of its work."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Rate:
    """Cumulative rows and tokens sampled over time. Samples come from heartbeats and commits, about one a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, rows: int, tokens: int) -> None:
        """Record the totals reached by ``now_s``. A total that went back (a lease was lost) starts a new window."""
        if self._samples and (rows < self._samples[-1][1] or tokens < self._samples[-1][2]):
            self._samples.clear()
        self._samples.append((now_s, rows, tokens))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    def clear(self) -> None:
        self._samples.clear()

    def _per_s(self, column: int) -> float | None:
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        elapsed_s = last[0] - first[0]
        done = last[column] - first[column]
        return done / elapsed_s if elapsed_s > 0 and done > 0 else None

    @property
    def rows_per_s(self) -> float | None:
        return self._per_s(1)

    @property
    def tokens_per_s(self) -> float | None:
        return self._per_s(2)
