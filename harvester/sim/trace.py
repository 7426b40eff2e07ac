"""Workloads of a simulation: random arrivals and lengths, or a recorded trace.

Randomness is handed in as a `random.Random`, so that one seed gives one trace.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from harvester.policy.step.view import Guarantee


@dataclass(frozen=True, slots=True)
class Request:
    """``output_tokens``: actual length of its answer; no policy sees it. ``job``: of an offline request; "" for an online one.

    ``max_tokens``: limit of its answer; None: the actual length. ``priority``: the lower one goes first, among requests of its class.
    ``weight``, ``guarantee`` and ``slice_id``: of an offline request. ``ttft_s`` and ``tpot_s``: SLO of an online one. ``cached_tokens``:
    prompt tokens that the prefix cache has whenever it is admitted. ``kind`` and ``expected_tokens``: see
    `harvester.policy.order.online.OnlineRequest`.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    job: str = ""
    max_tokens: int | None = None
    priority: int = 0
    weight: float = 1.0
    guarantee: Guarantee | None = None
    slice_id: int = 0
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    cached_tokens: int = 0
    kind: str = ""
    expected_tokens: int | None = None

    @property
    def offline(self) -> bool:
        return bool(self.job)

    @property
    def allowed_tokens(self) -> int:
        """Most tokens of its answer, as far as a policy can know."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens


class Lengths(Protocol):
    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Prompt tokens and output tokens of one request, each at least 1."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every request alike."""

    prompt_tokens: int
    output_tokens: int

    def draw(self, rng: random.Random) -> tuple[int, int]:
        return self.prompt_tokens, self.output_tokens


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal with this mean before it is clipped to ``least .. most``; ``sigma`` is that of the logarithm."""

    mean: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        value = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(self.most, max(self.least, round(value)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Prompt and answer lengths, independent of each other."""

    prompt: LogNormal
    output: LogNormal

    def draw(self, rng: random.Random) -> tuple[int, int]:
        return self.prompt.draw(rng), self.output.draw(rng)


# Means of ShareGPT and of Alpaca as the vLLM paper gives them (SOSP 2023, figure 11: 161.31 and 337.99, 19.31 and 58.45), before
# clipping to OPT's context of 2,048. The spread is an assumption: long-tailed, with some answers of a few tokens, as its histograms show.
SHAREGPT = Drawn(LogNormal(161.3, 1.1, 4, 1024), LogNormal(338.0, 1.1, 2, 1024))
ALPACA = Drawn(LogNormal(19.3, 0.6, 4, 512), LogNormal(58.5, 1.1, 2, 1024))


def gamma(rate: float, cv: float, seconds: float, lengths: Lengths, rng: random.Random, name: str = "r") -> list[Request]:
    """Requests of a Gamma process with ``rate`` a second and this coefficient of variation of the gaps (1: Poisson), until ``seconds``."""
    if rate <= 0.0 or cv <= 0.0:
        raise ValueError(f"rate={rate} and cv={cv} must be positive")
    shape = 1.0 / cv**2
    requests: list[Request] = []
    now_s = rng.gammavariate(shape, 1.0 / (shape * rate))
    while now_s < seconds:
        requests.append(Request(f"{name}{len(requests)}", now_s, *lengths.draw(rng)))
        now_s += rng.gammavariate(shape, 1.0 / (shape * rate))
    return requests


def replay(rows: Sequence[tuple[float, int, int]], seconds: float | None = None, speed: float = 1.0, name: str = "r") -> list[Request]:
    """Requests of a recorded trace, for example Azure's: rows of (timestamp_s, prompt_tokens, output_tokens), in order of time.

    The first row arrives at 0; ``speed`` 2 halves every gap; rows at or after ``seconds`` of the result are left out.
    """
    if not rows:
        return []
    start_s = rows[0][0]
    arrivals = [(row[0] - start_s) / speed for row in rows]
    if any(later < earlier for earlier, later in pairwise(arrivals)):
        raise ValueError("the rows of a trace must be in order of time; sort them by timestamp_s")
    end_s = math.inf if seconds is None else seconds
    return [Request(f"{name}{i}", at_s, row[1], row[2]) for i, (at_s, row) in enumerate(zip(arrivals, rows, strict=True)) if at_s < end_s]


def offline_job(job: str, rows: int, lengths: Lengths, rng: random.Random, arrival_s: float = 0.0) -> list[Request]:
    """The rows of one offline job, which all arrive at once."""
    return [Request(f"{job}/{i}", arrival_s, *lengths.draw(rng), job=job) for i in range(rows)]


def stretched(requests: Sequence[Request], factor: float) -> list[Request]:
    """The same requests with every prompt ``factor`` times as long (at least 1 token): another ratio of prompt to answer."""
    return [replace(request, prompt_tokens=max(1, round(request.prompt_tokens * factor))) for request in requests]


def promised(requests: Sequence[Request], ttft_s: float, tpot_s: float) -> list[Request]:
    """The same requests, the online ones with this SLO."""
    return [request if request.offline else replace(request, ttft_s=ttft_s, tpot_s=tpot_s) for request in requests]
