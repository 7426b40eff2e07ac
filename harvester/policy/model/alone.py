"""Estimates chat's first-token times and gaps without batch work, from the latency model's prediction for each step.

A step that holds both takes longer than its online work alone would: the rest is delay. A request that awaits its first token is delayed by
that part of every step that it waits through. The earlier delay of the requests ahead of it counts too: without batch work it would have
found a shorter queue. By this account, chat without an SLO is kept within a factor of its time without batch work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

MIN_STALE = 64  # heap entries of requests that are awaited no more; fewer are not worth a rebuild
MAX_SAVED = 0.3  # of a step's time alone: most that later steps may use of what a step was not stretched, or has to make up for
RECENT = 8  # latest arrivals, of which the shortest prompt counts


@dataclass(slots=True)
class _Awaited:
    """An online request without its first token. ``delayed_s``: its own delay, and that inherited from requests ahead of it.

    Once it is no longer new, its whole delay is ``delayed_s`` plus that of all steps (`ChatAlone._delay_s`).
    """

    arrived_s: float
    prefill_s: float
    delayed_s: float


@dataclass(slots=True)
class ChatTimes:
    """Sums over first tokens, and over gaps between tokens: seconds that they took, and seconds that they would have taken alone."""

    first_tokens: int = 0
    gone: int = 0  # ended without a first token
    ttft_s: float = 0.0
    ttft_alone_s: float = 0.0
    gaps: int = 0
    gap_s: float = 0.0
    gap_alone_s: float = 0.0


class ChatAlone:
    """The delays of one brain's chat. A step costs O(requests that came or got their first token in it), however many wait.

    ``max_slowdown``: maximum time of a first token, as a multiple of its time without batch work; None: no bound. ``prefill_s``: predicted
    time of the shortest prompt of the last arrivals; None before the first. A mean would be dominated by one long prompt among many short.
    ``saved_s``: by how much the last steps with chat were stretched less than ``planned`` (a share) of the slowdown allows; negative: more.
    """

    def __init__(self, max_slowdown: float | None = None, planned: float = 1.0) -> None:
        self.times = ChatTimes()
        self.saved_s = 0.0
        self._more = None if max_slowdown is None else max_slowdown - 1.0
        self._planned = planned
        self.prefill_s: float | None = None
        self._prefills_s: deque[float] = deque(maxlen=RECENT)
        self._awaited: dict[str, _Awaited] = {}
        self._new: dict[str, _Awaited] = {}  # those of them that may have come in the middle of the running step
        self._delay_s = 0.0  # of all steps so far
        self._ahead_s = 0.0  # prompt time of all that are awaited
        self._last = (0.0, 0.0, 0.0)  # the last step: start, end, delay per second
        self._busy_delay_s = 0.0  # since the last time that nobody awaited a first token
        self._behind: list[tuple[float, str]] = []  # a heap of those that are no longer new, the furthest behind first

    def arrive(self, name: str, prefill_s: float, arrived_s: float) -> None:
        """An online request has awaited its first token since ``arrived_s``, which may lie within the previous step.

        ``prefill_s``: predicted time of its prompt.
        """
        self._prefills_s.append(prefill_s)
        self.prefill_s = min(self._prefills_s)
        if not self._awaited:
            self._busy_delay_s = self._ahead_s = self._delay_s = 0.0
            self._behind.clear()
        from_s, until_s, delay = self._last
        waited_s = max(0.0, until_s - max(from_s, arrived_s))
        delayed_s = delay * waited_s + min(self._busy_delay_s, self._ahead_s)
        self._awaited[name] = self._new[name] = _Awaited(arrived_s, prefill_s, delayed_s)
        self._ahead_s += prefill_s

    def finish(self, name: str) -> None:
        """It ended or was aborted."""
        self.times.gone += self._take(name) is not None

    def ran(self, seconds: float, alone_s: float, first_tokens: Iterable[str], gaps: int, now_s: float) -> None:
        """A step took ``seconds`` and ended at ``now_s``; its online work alone would have taken ``alone_s``.

        ``first_tokens``: requests that got their first token. ``gaps``: number of online requests that got a further token.
        """
        delay = max(0.0, seconds - alone_s) / seconds if seconds > 0.0 else 0.0  # per second of the step
        if self._more is not None:
            most_s, unused_s = MAX_SAVED * alone_s, self._planned * self._more * alone_s - delay * seconds
            self.saved_s = min(most_s, max(-most_s, self.saved_s + unused_s))
        self._last = now_s - seconds, now_s, delay
        if self._awaited:
            self._busy_delay_s += delay * seconds
        self._delay_s += delay * seconds
        for name, one in self._new.items():
            one.delayed_s += delay * min(seconds, max(0.0, now_s - one.arrived_s)) - self._delay_s
            if self._more is not None:
                heappush(self._behind, (-self._behind_s(one, 0.0), name))
        self._new.clear()
        for name in first_tokens:
            self._first_token(name, now_s)
        self.times.gaps += gaps
        self.times.gap_s += gaps * seconds
        self.times.gap_alone_s += gaps * (1.0 - delay) * seconds

    def debt_s(self, now_s: float) -> float:
        """Seconds by which the furthest-behind request exceeds ``max_slowdown`` times its wait without batch work; at least 0.

        A delay common to all does not change which request that is: those that have waited through a step stay in one heap.
        """
        if self._more is None:
            return 0.0
        while self._behind and (self._behind[0][1] not in self._awaited):
            heappop(self._behind)
        old_s = (1.0 + self._more) * self._delay_s - self._more * now_s - self._behind[0][0] if self._behind else 0.0
        return max(0.0, old_s, max((self._behind_s(one, now_s) for one in self._new.values()), default=0.0))

    def _behind_s(self, one: _Awaited, now_s: float) -> float:
        assert self._more is not None, "nobody is behind where there is no bound"
        return one.delayed_s - self._more * (now_s - one.arrived_s - one.delayed_s)

    def _take(self, name: str) -> _Awaited | None:
        one = self._awaited.pop(name, None)
        if one is not None:
            self._ahead_s -= one.prefill_s
            one.delayed_s += 0.0 if self._new.pop(name, None) else self._delay_s
            if len(self._behind) > 2 * len(self._awaited) + MIN_STALE:
                self._behind = [entry for entry in self._behind if entry[1] in self._awaited]
                heapify(self._behind)
        return one

    def _first_token(self, name: str, now_s: float) -> None:
        one = self._take(name)
        if one is None:
            return
        ttft_s = max(0.0, now_s - one.arrived_s)
        self.times.first_tokens += 1
        self.times.ttft_s += ttft_s
        self.times.ttft_alone_s += max(0.0, ttft_s - one.delayed_s)
