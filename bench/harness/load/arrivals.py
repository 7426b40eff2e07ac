"""When online requests arrive and how long they are: a Gamma process, ON/OFF phases of it, or a sampled trace.

Everything drawn comes from the generator handed in, so that a seed decides it and every system gets the same load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

AZURE = Path(__file__).parents[2] / "traces" / "azure2023_conv.parquet"
SHAREGPT = AZURE.with_name("lengths_sharegpt.parquet")

Lengths = Sequence[tuple[int, int]]  # (prompt, answer) tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """``at_s`` after the start; exactly so many tokens in prompt and answer. ``body``: values laid over the request's."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of equal length, ordered by time."""

    times_s: Sequence[float]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]


def read_trace(path: Path = AZURE) -> Trace:
    table = pq.read_table(path, columns=["timestamp_s", "prompt_tokens", "output_tokens"]).sort_by("timestamp_s")
    return Trace(*(table.column(name).to_pylist() for name in table.column_names))


def read_lengths(path: Path = SHAREGPT) -> Lengths:
    table = pq.read_table(path, columns=["prompt_tokens", "output_tokens"])
    return list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def gamma_times(rate: float, cv: float, seconds: float, generator: np.random.Generator) -> list[float]:
    """Arrivals in [0, ``seconds``) whose gaps are Gamma distributed: ``rate`` a second, coefficient of variation ``cv`` (1: Poisson)."""
    shape = 1.0 / cv**2
    times: list[float] = []
    at_s = 0.0
    while True:
        at_s += float(generator.gamma(shape, 1.0 / (rate * shape)))
        if at_s >= seconds:
            return times
        times.append(at_s)


def synthetic(rate: float, cv: float, seconds: float, lengths: tuple[int, int], generator: np.random.Generator) -> list[Arrival]:
    """A Gamma process of requests of one length, (prompt, answer) tokens (ConServe 6.3)."""
    return [Arrival(at_s, *lengths) for at_s in gamma_times(rate, cv, seconds, generator)]


def drawn(
    rate: float, cv: float, seconds: float, lengths: Lengths, scale: float, most: tuple[int, int], generator: np.random.Generator
) -> list[Arrival]:
    """A Gamma process of requests whose lengths are drawn from ``lengths``, scaled and bounded as `replay` does (FastServe 6.1)."""
    times = gamma_times(rate, cv, seconds, generator)
    chosen = generator.integers(len(lengths), size=len(times)).tolist()
    return [Arrival(at_s, *scaled(lengths[index], scale, most)) for at_s, index in zip(times, chosen, strict=True)]


def scaled(length: tuple[int, int], scale: float, most: tuple[int, int]) -> tuple[int, int]:
    """(prompt, answer) tokens, multiplied by ``scale`` and kept between (4, 2) and ``most``."""
    prompt, answer = (round(tokens * scale) for tokens in length)
    return max(4, min(most[0], prompt)), max(2, min(most[1], answer))


def phased(phases: Sequence[tuple[float, float]], cv: float, lengths: tuple[int, int], generator: np.random.Generator) -> list[Arrival]:
    """Phases (seconds, rate) one after the other; a rate of 0 is silence (ConServe 6.3.1)."""
    found: list[Arrival] = []
    start_s = 0.0
    for seconds, rate in phases:
        times = gamma_times(rate, cv, seconds, generator) if rate > 0 else []
        found += [Arrival(start_s + at_s, *lengths) for at_s in times]
        start_s += seconds
    return found


def stretched(
    trace: Trace, rate: float, seconds: float, scale: float, most: tuple[int, int], generator: np.random.Generator
) -> list[Arrival]:
    """``rate`` x ``seconds`` requests that follow each other in the trace, none left out, its time stretched to ``seconds``.

    Another rate begins with the same requests. The trace goes on at its start where it ends; lengths are as in `replay`.
    """
    whole = len(trace.times_s)
    first, count = int(generator.integers(whole)), round(rate * seconds)
    length_s = trace.times_s[-1] - trace.times_s[0] + (trace.times_s[-1] - trace.times_s[0]) / max(1, whole - 1)

    def at_s(place: int) -> float:
        return trace.times_s[place % whole] + place // whole * length_s

    span_s = at_s(first + count) - at_s(first)
    return [
        Arrival(
            min((at_s(place) - at_s(first)) / max(span_s, 1e-9), 1.0 - 1e-9) * seconds,
            *scaled((trace.prompt_tokens[place % whole], trace.output_tokens[place % whole]), scale, most),
        )
        for place in range(first, first + count)
    ]


def replay(trace: Trace, rate: float, seconds: float, scale: float, most: tuple[int, int], generator: np.random.Generator) -> list[Arrival]:
    """``rate`` x ``seconds`` requests sampled from the whole trace, its time rescaled to [0, ``seconds``) (ConServe 6.1).

    Lengths are multiplied by ``scale`` and kept between (4, 2) and ``most``, (prompt, answer) tokens.
    """
    count = min(len(trace.times_s), round(rate * seconds))
    chosen = sorted(generator.choice(len(trace.times_s), size=count, replace=False).tolist())
    first_s, span_s = trace.times_s[0], trace.times_s[-1] - trace.times_s[0]
    return [
        Arrival(
            min((trace.times_s[i] - first_s) / span_s, 1.0 - 1e-9) * seconds,
            *scaled((trace.prompt_tokens[i], trace.output_tokens[i]), scale, most),
        )
        for i in chosen
    ]
