"""Capacity of a machine. The order scenarios use shares of it as rates, so that requests wait for each other on any machine.

The wait is what is compared, so no request is refused for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

from bench.harness.load.arrivals import Arrival
from bench.harness.measure.latency import Online
from bench.harness.measure.stretch import Stretch
from harvester.errors import EngineError

MAX_LATE_S = 0.1  # of half of the requests, when they are sent
ANY_WAIT: dict[str, Any] = {"slo": {"ttft_slo_ms": 3.6e6, "tpot_slo_ms": 3.6e6}}


class Answered(Protocol):
    @property
    def seen_until_s(self) -> float: ...
    def tokens_before(self, second: float) -> float: ...


def capacity_per_s(requests: Sequence[Answered], load: Sequence[Arrival], slots: int) -> float:
    """Requests a second, given the answers to a ``load`` that came all at once: by the tokens computed while ``slots`` were busy."""
    count = len(requests)
    ends_s = sorted(request.seen_until_s for request in requests)
    wanted_s = ends_s[max(0, count - slots - 1)]
    tokens = sum(request.tokens_before(wanted_s) for request in requests) / wanted_s
    return tokens * count / sum(one.prompt_tokens + one.output_tokens for one in load)


def check_none_refused(found: Stretch, order: str) -> None:
    """Raise `EngineError` where a request was: it counts as one that waited until the end."""
    refused = sum(request.refused for request in found.requests)
    if refused:
        raise EngineError(f"{order}: {refused} requests were refused, so its latency says nothing about the order")


def check_sent_in_time(requests: Sequence[Online], name: str) -> None:
    """Raise `EngineError` where the client itself waited for a core: what it then measures is the machine, not the server."""
    late_s = median(request.sent_s - request.at_s for request in requests)
    if late_s > MAX_LATE_S:
        raise EngineError(f"{name}: half of the requests were sent {late_s:.1f} s late or more; use a machine with more cores")
