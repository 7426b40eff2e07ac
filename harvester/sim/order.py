"""Orders among online requests: harvester's, and the ones it is compared with."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from harvester.policy.order.mlfq import Mlfq


class Order(Protocol):
    """Told of every online request by the loop; ids are those of the trace."""

    def arrive(self, request: str, prompt_tokens: int, now_s: float) -> None: ...

    def ran(self, request: str, seconds: float, now_s: float) -> None:
        """It took part in a step of ``seconds`` that ended at ``now_s``."""

    def finish(self, request: str) -> None: ...

    def order(self, now_s: float) -> Sequence[str]:
        """The one to serve first in front. One that is left out is not served."""


class Fcfs:
    """First come, first served, each to its end: stock vLLM."""

    def __init__(self) -> None:
        self._held: dict[str, None] = {}

    def arrive(self, request: str, prompt_tokens: int, now_s: float) -> None:
        self._held[request] = None

    def ran(self, request: str, seconds: float, now_s: float) -> None:
        pass

    def finish(self, request: str) -> None:
        del self._held[request]

    def order(self, now_s: float) -> Sequence[str]:
        return list(self._held)


class Batches(Fcfs):
    """First come, first served in batches of at most ``most``; the next starts when all of one have ended: no continuous batching."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._batch: dict[str, None] = {}

    def finish(self, request: str) -> None:
        super().finish(request)
        self._batch.pop(request, None)

    def order(self, now_s: float) -> Sequence[str]:
        if not self._batch:
            self._batch = dict.fromkeys(list(self._held)[: self._most])
        return list(self._batch)


class ShortestPrompt:
    """Fixed priority by prompt length, preemptive (FastServe 4.1, first strawman)."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int, str]] = []
        self._keys: dict[str, tuple[int, int, str]] = {}
        self._arrivals = 0

    def arrive(self, request: str, prompt_tokens: int, now_s: float) -> None:
        self._arrivals += 1
        self._keys[request] = (prompt_tokens, self._arrivals, request)
        insort(self._sorted, self._keys[request])

    def ran(self, request: str, seconds: float, now_s: float) -> None:
        pass

    def finish(self, request: str) -> None:
        del self._sorted[bisect_left(self._sorted, self._keys.pop(request))]

    def order(self, now_s: float) -> Sequence[str]:
        return [request for _, _, request in self._sorted]


class ShortestRemaining:
    """By the time that is left to each, known beforehand: no scheduler can have it, none has a lower mean latency with one slot (SRPT).

    ``service_s``: of each request, alone. What a step takes counts as one part in ``share``, since so many are served at once.
    """

    def __init__(self, service_s: Mapping[str, float], share: int) -> None:
        self._left_s = dict(service_s)
        self._share = share
        self._held: dict[str, None] = {}

    def arrive(self, request: str, prompt_tokens: int, now_s: float) -> None:
        self._held[request] = None

    def ran(self, request: str, seconds: float, now_s: float) -> None:
        self._left_s[request] -= seconds / self._share

    def finish(self, request: str) -> None:
        del self._held[request], self._left_s[request]

    def order(self, now_s: float) -> Sequence[str]:
        return sorted(self._held, key=self._left_s.__getitem__)


class Feedback:
    """harvester's own `Mlfq`; ``prefill_s`` predicts the time of a prompt by its tokens, None is the naive MLFQ that joins queue 0."""

    def __init__(self, mlfq: Mlfq, prefill_s: Callable[[int], float] | None) -> None:
        self._mlfq = mlfq
        self._prefill_s = prefill_s

    def arrive(self, request: str, prompt_tokens: int, now_s: float) -> None:
        self._mlfq.arrive(request, self._prefill_s(prompt_tokens) if self._prefill_s else 0.0, now_s)

    def ran(self, request: str, seconds: float, now_s: float) -> None:
        self._mlfq.ran(request, seconds, now_s)

    def finish(self, request: str) -> None:
        self._mlfq.finish(request)

    def order(self, now_s: float) -> Sequence[str]:
        return self._mlfq.order(now_s)
