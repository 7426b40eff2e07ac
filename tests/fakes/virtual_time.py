"""A virtual clock, and actors that wait for it and for each other, each a greenlet: a run is the same on any machine."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Clock:
    """Virtual seconds, and the actors that wait for them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._hub = getcurrent()
        self._serial = itertools.count()
        self._due: list[tuple[float, int, greenlet]] = []

    def now(self) -> float:
        return self.now_s

    def start(self, actor: Callable[[], None]) -> None:
        self.wake(greenlet(actor, parent=self._hub))

    def wake(self, actor: greenlet, at_s: float | None = None) -> None:
        heapq.heappush(self._due, (max(self.now_s, at_s or 0.0), next(self._serial), actor))

    def wait_until(self, at_s: float) -> None:
        """Suspend the calling actor until ``at_s``."""
        if at_s > self.now_s:
            self.wake(getcurrent(), at_s)
            self.pause()

    def wait(self, seconds: float) -> None:
        self.wait_until(self.now_s + seconds)

    def pause(self) -> None:
        """Suspend the calling actor until somebody wakes it."""
        self._hub.switch()

    def run_until(self, end_s: float) -> None:
        while self._due and self._due[0][0] <= end_s:
            self.now_s, _, actor = heapq.heappop(self._due)
            actor.switch()


class Box:
    """What one actor hands to another."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._items, self._waiting = clock, deque[Any](), deque[greenlet]()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._clock.wake(self._waiting.popleft())

    def get(self) -> Any:
        while not self._items:
            self._waiting.append(getcurrent())
            self._clock.pause()
        return self._items.popleft()

    def __len__(self) -> int:
        return len(self._items)
