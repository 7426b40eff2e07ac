"""FastServe's baselines (4.1, 6.3) on harvester's engine: its queue with one thing taken out. Imported in the engine core by name."""

from __future__ import annotations

from typing import Any

from bench.harness.engine.counting_harvest import CountedAsyncHarvest, CountedHarvest
from harvester.policy.order.mlfq import Mlfq

_arrive, _ran = Mlfq.arrive, Mlfq.ran


def _join_first(self: Mlfq, request: str, prefill_s: float, now_s: float) -> None:
    """Naive MLFQ: every request joins the first queue."""
    _arrive(self, request, 0.0, now_s)


def _stay(self: Mlfq, request: str, seconds: float, now_s: float, next_s: float = 0.0) -> None:
    """Fixed priority: the queue follows from the prompt and is kept."""
    _ran(self, request, 0.0, now_s, next_s)


class NaiveMlfq(CountedHarvest):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Mlfq.arrive = _join_first  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class FixedPriority(CountedHarvest):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Mlfq.ran = _stay  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class AsyncNaiveMlfq(CountedAsyncHarvest):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Mlfq.arrive = _join_first  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class AsyncFixedPriority(CountedAsyncHarvest):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Mlfq.ran = _stay  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)
