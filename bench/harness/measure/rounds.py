"""Engines measured in turns, round after round, and ratios with the spread that a noisy machine gives them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, TypeVar

from bench.harness.measure.latency import percentile
from bench.harness.options import Options
from harvester.errors import UsageError

T = TypeVar("T")

RESAMPLED = 400
SPREAD = (5.0, 95.0)  # percentiles of the resampled ratios that bound the interval of a ratio


def rounds_of(given: Mapping[str, float], usual: int) -> int:
    """``rounds`` of what the user set (``--set rounds=N``), or ``usual``. Raises `UsageError` for what is no whole number of at least 1."""
    return whole_number("rounds", given, usual)


def without(name: str, options: Options) -> Options:
    """``options`` for `bench.harness.knobs.knobs`, which has no knob ``name``."""
    return replace(options, set={key: value for key, value in options.set.items() if key != name})


def whole_number(name: str, given: Mapping[str, float], usual: int) -> int:
    """What the user set for ``name``, or ``usual``. Raises `UsageError` for what is no whole number of at least 1."""
    number = given.get(name, usual)
    if number < 1 or number != int(number):
        raise UsageError(f"--set {name}={number:g}: give a whole number of at least 1")
    return int(number)


def in_turns(names: Sequence[str], rounds: int, measure: Callable[[str, int], T]) -> dict[str, list[T]]:
    """Results of ``measure(name, round)`` for each name, ``rounds`` times.

    Every other round goes in the opposite order, so that a machine that slows down favors nobody.
    """
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(measure(name, number))
    return found


def ratio_of_rounds(ones: Sequence[float | None], others: Sequence[float | None]) -> dict[str, Any]:
    """The median ratio, and that of each round. No ratio where a round measured nothing, or 0 in the lower place."""
    ratios = [one / other for one, other in zip(ones, others, strict=True) if one is not None and other]
    if not ratios or len(ratios) < len(ones):
        return {"ratio": None, "rounds": []}
    return {"ratio": round(median(ratios), 4), "rounds": [round(ratio, 4) for ratio in ratios]}


def ratio_of_percentiles(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]], share: float, seed: int) -> dict[str, Any]:
    """Ratio of a percentile of all rounds' values, with its 90% interval by a two-stage bootstrap over rounds and values.

    All are None where one side has no value.
    """
    if not (any(ones) and any(others)):
        return dict.fromkeys(("ratio", "from", "to"))
    rng = random.Random(seed)
    ratio = _pooled(ones, share) / max(1e-9, _pooled(others, share))
    drawn = sorted(_pooled(_resampled(ones, rng), share) / max(1e-9, _pooled(_resampled(others, rng), share)) for _ in range(RESAMPLED))
    low, high = (percentile(drawn, edge) for edge in SPREAD)
    assert low is not None
    assert high is not None
    return {"ratio": round(ratio, 4), "from": round(low, 4), "to": round(high, 4)}


def pooled(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of the rounds' counters."""
    return {name: sum(values[name] for values in rounds) for name in rounds[0]}


def _pooled(rounds: Sequence[Sequence[float]], share: float) -> float:
    found = percentile([value for values in rounds for value in values], share)
    return 0.0 if found is None else found


def _resampled(rounds: Sequence[Sequence[float]], rng: random.Random) -> list[list[float]]:
    return [rng.choices(values, k=len(values)) for values in rng.choices(rounds, k=len(rounds)) if values]
