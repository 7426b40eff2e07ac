"""What the requests of one run got: latency a token, the share that kept the paper's SLO, and who waited longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.measure.latency import percentile

SLO_SCALE = 2.0  # EconoServe 4: the whole answer within so many times what it takes in an orderly batch


@dataclass(frozen=True, slots=True)
class SloTimes:
    """What the SLO is made of (EconoServe 4): seconds of a prompt by itself, and of a token in a batch that fills the machine."""

    prompt_s: float
    token_s: float

    def slo_s(self, output_tokens: int) -> float:
        """For the whole answer."""
        return SLO_SCALE * (self.prompt_s + self.token_s * output_tokens)


@dataclass(frozen=True, slots=True)
class Served:
    """One request. ``first_s``: from its arrival to its first token; ``whole_s``: to its last, or until looking ended."""

    prompt_tokens: int
    output_tokens: int
    first_s: float
    whole_s: float
    ended: bool = True

    @property
    def normalized_s(self) -> float:
        return self.whole_s / self.output_tokens


def figures(requests: Sequence[Served], times: SloTimes) -> dict[str, Any]:
    """Seconds a token, SSR, and the longest wait for a first token with the lengths of who had it.

    An unfinished answer counts with its wait so far, and as outside its SLO.
    """
    if not requests:
        return {"requests": 0}
    normalized = [one.normalized_s for one in requests]
    kept = sum(one.ended and one.whole_s <= times.slo_s(one.output_tokens) for one in requests)
    last = max(requests, key=lambda one: one.first_s)
    return {
        "requests": len(requests),
        "unfinished": sum(not one.ended for one in requests),
        "normalized_s": {
            "mean": round(sum(normalized) / len(normalized), 5),
            "p95": round(percentile(normalized, 95) or 0.0, 5),
            "p99": round(percentile(normalized, 99) or 0.0, 5),
        },
        "ssr": round(kept / len(requests), 4),
        "longest_wait_s": round(last.first_s, 3),
        "who_waited": {"prompt_tokens": last.prompt_tokens, "output_tokens": last.output_tokens},
        "mean_wait_s": by_length(requests),
    }


def by_length(requests: Sequence[Served]) -> dict[str, float]:
    """Mean wait for a first token of the shortest quarter of the answers and of the longest: who starves."""
    ordered = sorted(requests, key=lambda one: one.output_tokens)
    quarter = max(1, len(ordered) // 4)
    groups = {"shortest_quarter": ordered[:quarter], "longest_quarter": ordered[-quarter:]}
    return {name: round(sum(one.first_s for one in group) / len(group), 3) for name, group in groups.items()}
