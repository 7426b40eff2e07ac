"""Scenario ``burst``: chat that comes in ever larger bursts, and ever faster (ConServe 6.3.2, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, Setting, harvester, priority, ratios, stock_alone
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import synthetic
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options

FULL = Knobs(seconds=90.0)
QUICK = replace(SHORT, seconds=12.0)
CVS = (0.5, 1.0, 2.0, 4.0)
RATES = (0.5, 1.0, 1.5)  # times the knob `rate`
QUICK_POINTS = ((1.0, 1.0), (4.0, 1.0))


def run(options: Options) -> dict[str, Any]:
    """Every system keeps its server through all points. Its SLO is that of chat alone at the first point."""
    given = knobs(options, FULL, QUICK)
    chosen = points(options.quick)
    loads = [_load(cv, part * given.rate, given, options.seed) for cv, part in chosen]
    with set_up(options, given, given.warm_s + len(loads) * (given.seconds + 30) + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        online, _ = stock_alone(comparison, loads, offline_too=False)
        slo = online[0].p99()
        found: dict[str, Sequence[Stretch]] = {"online_only": online, "vllm_priority": priority(comparison, loads, Setting.usual(given))}
        found["harvester"], _ = harvester(comparison, loads, slo)
        lines = []
        for index, (cv, part) in enumerate(chosen):
            systems = {name: stretches[index].summary(slo) for name, stretches in found.items()}
            lines.append({"cv": cv, "rate": round(part * given.rate, 4), "systems": systems, "ratios": ratios(systems)})
        return described(given, place) | {"systems": lines[0]["systems"], "ratios": lines[0]["ratios"], "points": lines}


def points(quick: bool) -> list[tuple[float, float]]:
    """(CV, part of the rate): the base point first, then one of the two varied."""
    if quick:
        return list(QUICK_POINTS)
    base = (1.0, 1.0)
    return [base, *((cv, 1.0) for cv in CVS if cv != base[0]), *((base[0], part) for part in RATES if part != base[1])]


def _load(cv: float, rate: float, given: Knobs, seed: int) -> Load:
    return synthetic(rate, cv, given.seconds, given.lengths, np.random.default_rng(seed))
