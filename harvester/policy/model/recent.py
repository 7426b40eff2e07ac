"""Quantiles of the latest values."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class Recent:
    """The last ``limit`` values, ordered by time and by size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def add(self, value: float) -> None:
        """O(log limit), and one insertion into a short list."""
        self._latest.append(value)
        insort(self._ordered, value)
        if len(self._latest) > self._limit:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]

    def median(self) -> float:
        """The middle value, the upper one of two. Raises IndexError where there are none."""
        return self._ordered[len(self._ordered) // 2]

    def quantile(self, share: float) -> float:
        """The smallest value that at least ``share`` (0 .. 1) of them do not exceed. Raises IndexError where there are none."""
        return self._ordered[max(0, -int(-share * len(self._ordered) // 1) - 1)]
