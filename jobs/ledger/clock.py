"""Whether the wall clock was set: by hand, by a time server, or by a machine that slept."""

from __future__ import annotations

from collections.abc import Callable

SET_S = 1.0  # little corrections of a time server add up to it now and then


class ClockWatch:
    """``wall_s`` may be set at any time, ``steady_s`` (`time.monotonic`) never is."""

    def __init__(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._apart_s = wall_s() - steady_s()

    def set_by_s(self) -> float | None:
        """Seconds by which the wall clock was set since the last call that reported a change; None below `SET_S`."""
        apart_s = self._wall_s() - self._steady_s()
        by_s = apart_s - self._apart_s
        if abs(by_s) < SET_S:
            return None
        self._apart_s = apart_s
        return by_s
