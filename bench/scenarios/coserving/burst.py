"""Scenario ``burst``: chat that comes in ever larger bursts, and ever faster (ConServe 6.3.2, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, account_ratios, harvester, priority, ratios
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import synthetic
from bench.harness.measure.account import accounts
from bench.harness.measure.latency import Slo
from bench.harness.measure.prices import Prices, stock_prices
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options
from bench.harness.paced import Pace, paced_alone
from bench.harness.sweep import swept
from harvester.errors import UsageError

FULL = Knobs(seconds=90.0)
QUICK = replace(SHORT, seconds=12.0)
CVS = (0.5, 1.0, 2.0, 4.0)
RATES = (0.5, 1.0, 1.5, 2.0)  # times the first point's
SHARES = (0.25,)  # of the first point; the highest rate is then half of what the engine can do
QUICK_POINTS = ((1.0, 1.0), (4.0, 1.0))


def run(options: Options) -> dict[str, Any]:
    """Each system keeps one server through all points. The SLO is that of chat alone at the first point, whose load has the share."""
    given = knobs(options, FULL, QUICK)
    chosen, pace = points(options.quick), Pace.of(options, SHARES, SHARES)
    if pace.points > 1:
        raise UsageError("burst has points at several shares itself: give one --share, that of the first point")

    def loads(rate: float) -> list[Load]:
        return [_load(cv, part * rate, given, options.seed) for cv, part in chosen]

    with set_up(options, given, given.warm_s + len(chosen) * (given.seconds + 30) + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        ((paced, online),), _ = paced_alone(comparison, pace, loads, given.seconds, offline_too=False)
        slo = online[0].p99()
        setting, sweep = swept(comparison, paced.loads[0], quick=options.quick)
        found: dict[str, Sequence[Stretch]] = {"online_only": online, "vllm_priority": priority(comparison, paced.loads, setting)}
        found["harvester"], _ = harvester(comparison, paced.loads, slo)
        prices, work = stock_prices(place.folder)
        lines = []
        for index, (cv, part) in enumerate(chosen):
            systems = {name: _summary(stretches[index], slo, given, prices) for name, stretches in found.items()}
            head = {"cv": cv, "rate": round(part * paced.rate, 4), **paced.shares(part, paced.loads[index])}
            lines.append(head | {"systems": systems, "ratios": ratios(systems) | account_ratios(systems)})
        first = {"systems": lines[0]["systems"], "ratios": lines[0]["ratios"]}
        shown = described(replace(given, rate=paced.rate), place)
        return shown | {"chat": paced.line(), **first, "work": work, "points": lines, "vllm_priority_sweep": sweep}


def _summary(stretch: Stretch, slo: Slo, given: Knobs, prices: Prices) -> dict[str, Any]:
    return stretch.summary(slo) | accounts([stretch], [(0.0, given.seconds)], given.settle_s, prices)


def points(quick: bool) -> list[tuple[float, float]]:
    """(CV, part of the rate): the base point first, then one of the two varied."""
    if quick:
        return list(QUICK_POINTS)
    base = (1.0, 1.0)
    return [base, *((cv, 1.0) for cv in CVS if cv != base[0]), *((base[0], part) for part in RATES if part != base[1])]


def _load(cv: float, rate: float, given: Knobs, seed: int) -> Load:
    return synthetic(rate, cv, given.seconds, given.lengths, np.random.default_rng(seed))
