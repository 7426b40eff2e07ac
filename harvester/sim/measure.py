"""Metrics of a simulated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harvester.sim.track import Outcome


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 .. 1) of them do not exceed. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values to take a percentile of")
    return sorted(values)[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a run's online requests: latency over output tokens in s/token, TTFT and gaps in seconds. Of all: recomputed and preempted."""

    requests: int
    normalized_mean_s: float
    normalized_p95_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    recomputed_tokens: int
    preemptions: int


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    """Raises ValueError where no online request ended."""
    online = [outcome for outcome in outcomes if not outcome.request.offline]
    normalized = [outcome.normalized_s for outcome in online]
    ttft = [outcome.ttft_s for outcome in online]
    gaps = [gap for outcome in online for gap in outcome.gaps_s] or [0.0]
    return Summary(
        len(online),
        sum(normalized) / max(1, len(normalized)),
        percentile(normalized, 0.95),
        percentile(ttft, 0.5),
        percentile(ttft, 0.99),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
        sum(outcome.recomputed for outcome in outcomes),
        sum(outcome.preemptions for outcome in outcomes),
    )


def highest_rate(measure: Callable[[float], float], bound: float, rates: Sequence[float]) -> float | None:
    """The request rate up to which ``measure(rate)`` stays within ``bound``: ``rates`` ascend, a crossing between two is interpolated.

    None where the first rate is above the bound already; the last rate where none is.
    """
    before: tuple[float, float] | None = None
    for rate in rates:
        value = measure(rate)
        if value > bound:
            return None if before is None else before[0] + (rate - before[0]) * (bound - before[1]) / (value - before[1])
        before = (rate, value)
    return before[0] if before else None
