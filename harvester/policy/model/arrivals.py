"""How much room to keep for online arrivals: as much as their recent bursts took (after FastServe 4.2: slots kept for new jobs)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Estimate:
    """Mean and mean deviation, each an exponential average, as TCP estimates its round trips (RFC 6298)."""

    mean: float
    deviation: float = 0.0
    samples: int = 0

    def add(self, value: float) -> None:
        if self.samples == 0:
            self.mean, self.deviation = value, value / 2
        else:
            self.deviation += (abs(value - self.mean) - self.deviation) / 4
            self.mean += (value - self.mean) / 4
        self.samples += 1

    def shrink(self, factor: float) -> None:
        self.mean *= factor
        self.deviation *= factor

    def high(self) -> float:
        return self.mean + 2 * self.deviation


class ArrivalRate:
    """Exponential average of the time between arrivals, and at least the time since the last one."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._gap_s: float | None = None

    def arrival(self, now_s: float) -> None:
        if self._last_s is not None:
            gap_s = now_s - self._last_s
            self._gap_s = gap_s if self._gap_s is None else self._gap_s + (gap_s - self._gap_s) / 8
        self._last_s = now_s

    def gap_s(self, now_s: float) -> float:
        """Seconds to expect until the next arrival; inf before there were two."""
        if self._last_s is None or self._gap_s is None:
            return math.inf
        return max(self._gap_s, now_s - self._last_s)


class BurstReserve:
    """Reserve for bursts of online arrivals. A burst: all arrivals within ``window_s`` of its first one.

    The reserve is the average burst plus twice its deviation, and never less than the current burst. It halves in each ``half_life_s``
    without arrivals. Times are of one monotonic clock.
    """

    def __init__(self, window_s: float = 1.0, half_life_s: float = 60.0, slots: int = 0, blocks: int = 0) -> None:
        """``slots`` and ``blocks``: the reserve until the first burst is over."""
        self._window_s, self._half_life_s = window_s, half_life_s
        self._slots, self._blocks = _Estimate(slots), _Estimate(blocks)
        self._began_s: float | None = None  # start of the current burst; None: none yet
        self._last_s = 0.0
        self._burst = (0, 0)

    def arrival(self, now_s: float, blocks: int) -> None:
        """Count an online request whose prompt needs ``blocks`` KV blocks."""
        if self._began_s is None:
            self._began_s = now_s
        elif now_s - self._began_s > self._window_s:
            self._end(now_s)
            self._began_s = now_s
        self._burst = (self._burst[0] + 1, self._burst[1] + blocks)
        self._last_s = now_s

    def reserve(self, now_s: float) -> tuple[int, int]:
        """Slots and KV blocks to keep free for the next burst. Changes nothing."""
        if self._began_s is None:
            return round(self._slots.mean), round(self._blocks.mean)
        slots, blocks = self._burst
        kept = self._kept(now_s)
        return round(kept * max(slots, self._slots.high())), round(kept * max(blocks, self._blocks.high()))

    def _end(self, now_s: float) -> None:
        kept = self._kept(now_s)
        for estimate, count in zip((self._slots, self._blocks), self._burst, strict=True):
            estimate.add(count)
            estimate.shrink(kept)
        self._burst = (0, 0)

    def _kept(self, now_s: float) -> float:
        """The share of an estimate that is left after the time since the last arrival."""
        return float(0.5 ** (max(0.0, now_s - self._last_s - self._window_s) / self._half_life_s))
