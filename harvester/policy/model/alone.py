"""What chat would have had without batch work: its first tokens and gaps, by the latency model's account of each step.

A step that holds both takes longer than its online work alone would: the rest is delay. Who waits for a first token is delayed by that part
of every step that it waits through, and by what those ahead of it were delayed before it came: without batch work it would have found a
shorter queue. With that account the chat that nobody promised a number to is kept within a factor of what it would have had.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Awaited:
    """An online request without its first token. ``delayed_s``: of those ahead of it when it came, and of itself until the last step."""

    arrived_s: float
    prefill_s: float
    delayed_s: float


@dataclass(slots=True)
class ChatTimes:
    """Sums over first tokens, and over gaps between tokens: seconds that they took, and seconds that they would have taken alone."""

    first_tokens: int = 0
    ttft_s: float = 0.0
    ttft_alone_s: float = 0.0
    gaps: int = 0
    gap_s: float = 0.0
    gap_alone_s: float = 0.0


class ChatAlone:
    """Of one brain. Calls cost O(requests without a first token)."""

    def __init__(self) -> None:
        self.times = ChatTimes()
        self._awaited: dict[str, _Awaited] = {}
        self._last = (0.0, 0.0, 0.0)  # the last step: from, until, delay a second
        self._busy_delay_s = 0.0  # since somebody has awaited a first token, without a break

    def arrive(self, name: str, prefill_s: float, arrived_s: float) -> None:
        """An online request waits for its first token, since ``arrived_s``, which may be in the step before.

        ``prefill_s``: what its prompt takes.
        """
        if not self._awaited:
            self._busy_delay_s = 0.0
        ahead_s = sum(one.prefill_s for one in self._awaited.values())
        from_s, until_s, delay = self._last
        waited_s = max(0.0, until_s - max(from_s, arrived_s))
        self._awaited[name] = _Awaited(arrived_s, prefill_s, delay * waited_s + min(self._busy_delay_s, ahead_s))

    def finish(self, name: str) -> None:
        """It ended or was aborted."""
        self._awaited.pop(name, None)

    def ran(self, seconds: float, alone_s: float, first_tokens: Iterable[str], gaps: int, now_s: float) -> None:
        """A step took ``seconds`` until ``now_s``, of which its online work would have taken ``alone_s``.

        ``first_tokens``: whose first token it made. ``gaps``: how many online requests made another one.
        """
        delay = max(0.0, seconds - alone_s) / seconds if seconds > 0.0 else 0.0  # a second of it
        self._last = now_s - seconds, now_s, delay
        for one in self._awaited.values():
            one.delayed_s += delay * min(seconds, max(0.0, now_s - one.arrived_s))
        if self._awaited:
            self._busy_delay_s += delay * seconds
        for name in first_tokens:
            self._first_token(name, now_s)
        self.times.gaps += gaps
        self.times.gap_s += gaps * seconds
        self.times.gap_alone_s += gaps * (1.0 - delay) * seconds

    def debt_s(self, max_slowdown: float, now_s: float) -> float:
        """By how much the most delayed first token is behind ``max_slowdown`` times what it would have taken so far; at least 0."""
        more = max_slowdown - 1.0
        behind_s = (one.delayed_s - more * (now_s - one.arrived_s - one.delayed_s) for one in self._awaited.values())
        return max(0.0, max(behind_s, default=0.0))

    def _first_token(self, name: str, now_s: float) -> None:
        one = self._awaited.pop(name, None)
        if one is None:
            return
        ttft_s = max(0.0, now_s - one.arrived_s)
        self.times.first_tokens += 1
        self.times.ttft_s += ttft_s
        self.times.ttft_alone_s += max(0.0, ttft_s - one.delayed_s)
