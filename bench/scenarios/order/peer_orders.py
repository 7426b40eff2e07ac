"""Orders among online requests that harvester is compared with and that no deployment would choose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from harvester.policy.order.online import Fcfs, OnlineRequest


class Batches(Fcfs):
    """First come, first served in batches of at most ``most``; the next starts when all of one have ended: no continuous batching."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._batch: dict[str, None] = {}

    def finish(self, name: str) -> None:
        super().finish(name)
        self._batch.pop(name, None)

    def order(self, now_s: float) -> Iterable[str]:
        if not self._batch:
            self._batch = dict.fromkeys(islice(super().order(now_s), self._most))
        return list(self._batch)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return [name for name in self.order(now_s) if name in names]


class ShortestRemaining:
    """Shortest remaining time first (SRPT), with times known beforehand, which no scheduler can have.

    With one slot, no order has a lower mean latency. ``service_s``: of each request, alone. A step's time counts for each request as one
    part in ``share``, since so many are served at once.
    """

    preempts_last = False

    def __init__(self, service_s: Mapping[str, float], share: int) -> None:
        self._left_s = dict(service_s)
        self._share = share
        self._held: dict[str, None] = {}

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._held[request.name] = None

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        for name in names:
            if name in self._held:
                self._left_s[name] -= seconds / self._share

    def finish(self, name: str) -> None:
        del self._held[name], self._left_s[name]

    def order(self, now_s: float) -> Sequence[str]:
        return sorted(self._held, key=self._left_s.__getitem__)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return [name for name in self.order(now_s) if name in names]

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        """When those before it have ended, ``batch`` at a time."""
        turns_s, before_s = {}, 0.0
        for place, name in enumerate(self.order(now_s)):
            turns_s[name] = before_s / max(1, batch) if place >= batch else 0.0
            before_s += max(0.0, self._left_s[name])
        return {name: turns_s[name] for name in names if name in turns_s}
