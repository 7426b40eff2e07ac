"""Runs of a system at a rate, as means over seeds, and the rate that it sustains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace

from bench.papers.engine.run import Figures
from bench.papers.loads import Load
from bench.papers.machines import Setting
from bench.papers.systems.system import Simulated

BOUND_S = 0.1  # mean normalized latency, seconds a token, at which rates are compared
STEP, NEAR = 1.3, 1.01  # factor between tried rates until two enclose the bound; ratio of the two at which bisection stops


def mean_of(system: Simulated, load: Load, setting: Setting, seeds: Sequence[int]) -> Figures:
    """Means over runs that differ in their seed."""
    runs = [system.simulate(replace(load, seed=seed), setting) for seed in seeds]
    means = {field.name: sum(getattr(run, field.name) for run in runs) / len(runs) for field in fields(Figures)}
    return Figures(**{**means, "requests": round(means["requests"])})


def sustained(measure: Callable[[float], float], bound: float, guess: float, near: float = NEAR) -> float:
    """The highest rate at which ``measure`` stays within ``bound``, to a factor of ``near``. Assumes that it rises with the rate."""
    low, high = guess, guess * STEP
    while measure(low) > bound:
        low, high = low / STEP, low
    while measure(high) <= bound:
        low, high = high, high * STEP
    while high > near * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if measure(middle) <= bound else (low, middle)
    return low


def sustained_rate(system: Simulated, load: Load, setting: Setting, seeds: Sequence[int], bound_s: float = BOUND_S) -> float:
    """Requests a second at which the mean normalized latency reaches ``bound_s``. ``load.rate``: where the search begins."""
    return sustained(lambda rate: mean_of(system, replace(load, rate=rate), setting, seeds).normalized_s, bound_s, load.rate)


def rounded(figures: Figures) -> dict[str, float]:
    """To four significant digits, as results are kept."""
    return {name: float(f"{value:.4g}") for name, value in asdict(figures).items()}


def over(values: Mapping[str, float], base: str) -> dict[str, float]:
    """Each as a multiple of that of ``base``."""
    return {name: round(value / values[base], 3) for name, value in values.items()}
