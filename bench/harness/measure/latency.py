"""What online requests saw: percentiles, windows, and whether a window kept the SLO."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets for the 99th percentiles (ConServe 6.2)."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Online:
    """One request, as its client saw it. All times count from the start of the load; ``tokens``: (when, how many had come)."""

    at_s: float  # planned
    sent_s: float
    prompt_tokens: int
    tokens: Sequence[tuple[float, int]]
    ended: bool
    seen_until_s: float  # its end, or the end of observation
    refused: bool = False  # with 429: counts as waiting for a token until the end of observation

    @property
    def ttft_ms(self) -> float:
        """From sending. Without a token: the wait until the end of observation, which is too short."""
        return ((self.tokens[0][0] if self.tokens else self.seen_until_s) - self.sent_s) * 1e3

    def gaps(self) -> list[tuple[float, float]]:
        """(end, ms) of every gap between two chunks; a chunk of several tokens closes one gap.

        A gap that is open at the end of observation counts with its length so far.
        """
        times = [at_s for at_s, _ in self.tokens]
        if times and not self.ended:
            times.append(self.seen_until_s)
        return [(after, (after - before) * 1e3) for before, after in pairwise(times)]

    @property
    def normalized_ms(self) -> float:
        """Whole time over output tokens (FastServe 6.1)."""
        return (self.seen_until_s - self.sent_s) * 1e3 / max(1, self.tokens[-1][1] if self.tokens else 0)

    def tokens_before(self, end_s: float) -> int:
        """Prompt and output tokens worked off before ``end_s``; a prompt counts at the first token, as vLLM's counter does."""
        seen = [count for at_s, count in self.tokens if at_s <= end_s]
        return self.prompt_tokens + seen[-1] if seen else 0


def read_online(path: Path, prompt_tokens: Sequence[int]) -> tuple[list[Online], list[str]]:
    """What `bench.harness.load.online_client` wrote, and the errors in it."""
    found: list[Online] = []
    errors: list[str] = []
    for line, prompt in zip(path.read_text(encoding="utf-8").splitlines(), prompt_tokens, strict=True):
        values = json.loads(line)
        if values["error"]:
            errors.append(str(values["error"]))
        tokens = [(at_s, count) for at_s, count in values["tokens"]]
        found.append(Online(values["at_s"], values["sent_s"], prompt, tokens, values["ended"], values["seen_until_s"], values["refused"]))
    return found, errors


def percentile(values: Iterable[float], share: float) -> float | None:
    """The nearest rank: the smallest value that at least ``share`` percent of them do not exceed. None for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] if ordered else None


def percentiles(values: Iterable[float], shares: Sequence[int] = PERCENTILES) -> dict[str, float | None]:
    ordered = sorted(values)
    return {f"p{share}": _rounded(percentile(ordered, share)) for share in shares}


def windows(requests: Sequence[Online], seconds: float, window_s: float, slo: Slo | None) -> list[dict[str, Any]]:
    """Windows of ``window_s`` over [0, ``seconds``): a request belongs to the one it was planned in, a gap to the one it ended in.

    ``within_slo`` is None without an SLO, and where a window has nothing to judge.
    """
    count = max(1, math.ceil(seconds / window_s - 1e-9))
    ttft: list[list[float]] = [[] for _ in range(count)]
    tpot: list[list[float]] = [[] for _ in range(count)]
    for request in requests:
        ttft[min(count - 1, int(request.at_s / window_s))].append(request.ttft_ms)
        for end_s, gap_ms in request.gaps():
            tpot[min(count - 1, int(end_s / window_s))].append(gap_ms)
    found = []
    for index in range(count):
        first, between = percentile(ttft[index], 99), percentile(tpot[index], 99)
        line: dict[str, Any] = {"from_s": round(index * window_s, 3), "requests": len(ttft[index])}
        line |= {"ttft_p99_ms": _rounded(first), "tpot_p99_ms": _rounded(between), "within_slo": None}
        if slo is not None and (first is not None or between is not None):
            line["within_slo"] = (first or 0.0) <= slo.ttft_ms and (between or 0.0) <= slo.tpot_ms
        found.append(line)
    return found


def attainment(requests: Sequence[Online], lines: Sequence[dict[str, Any]], slo: Slo) -> dict[str, Any]:
    """Shares of windows, of requests (first token) and of gaps that keep the SLO."""
    judged = [line["within_slo"] for line in lines if line["within_slo"] is not None]
    gaps = [gap_ms for request in requests for _, gap_ms in request.gaps()]
    return {
        "ttft_ms": round(slo.ttft_ms, 2),
        "tpot_ms": round(slo.tpot_ms, 2),
        "windows": len(judged),
        "windows_within": sum(judged),
        "windows_within_share": _share(sum(judged), len(judged)),
        "requests_within_share": _share(sum(request.ttft_ms <= slo.ttft_ms for request in requests), len(requests)),
        "gaps_within_share": _share(sum(gap_ms <= slo.tpot_ms for gap_ms in gaps), len(gaps)),
    }


def late_gaps_share(requests: Sequence[Online], slo: Slo) -> float | None:
    """Share of the gaps that are longer than the SLO; None without gaps.

    A P99 TPOT at the knee of chat's own prompt steps doubles when 1.0% of the gaps become 1.5%; this share shows how small that change is.
    """
    gaps = [gap_ms for request in requests for _, gap_ms in request.gaps()]
    return round(sum(gap_ms > slo.tpot_ms for gap_ms in gaps) / len(gaps), 5) if gaps else None


def online_summary(requests: Sequence[Online]) -> dict[str, Any]:
    normalized = [request.normalized_ms for request in requests]
    return {
        "ttft_ms": percentiles(request.ttft_ms for request in requests),
        "tpot_ms": percentiles(gap_ms for request in requests for _, gap_ms in request.gaps()),
        "normalized_ms": {"mean": _rounded(sum(normalized) / len(normalized) if normalized else None), **percentiles(normalized, (95,))},
        "online_requests": len(requests),
        "online_unfinished": sum(not request.ended for request in requests),
        "online_refused": sum(request.refused for request in requests),
        "client_late_ms": percentiles(((request.sent_s - request.at_s) * 1e3 for request in requests), (50, 99)),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
