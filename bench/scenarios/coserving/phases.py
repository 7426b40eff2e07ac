"""Scenario ``phases``: chat at full load, none, and again, beside batch work that never ends (ConServe 6.3.1, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, Setting, account_ratios, harvester, offline_system, over, priority, ratios
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import phased
from bench.harness.measure.account import account, accounts
from bench.harness.measure.prices import Prices, stock_prices
from bench.harness.measure.stretch import Span, Stretch
from bench.harness.options import Options
from bench.harness.paced import Pace, Paced, first_of, paced_alone
from bench.harness.sweep import swept

NAMES = ("on", "off", "on_again")
FULL = Knobs(seconds=270.0)
QUICK = replace(SHORT, seconds=36.0, idle_s=6.0, window_s=3.0, settle_s=6.0)


def run(options: Options) -> dict[str, Any]:
    """Each share of the engine's capacity is a comparison of its own: chat has that share in the phases in which it comes."""
    given = knobs(options, FULL, QUICK)
    pace, each_s = Pace.of(options), given.seconds / len(NAMES)

    def loads(rate: float) -> list[Load]:
        phases = [(each_s, rate), (each_s, 0.0), (each_s, rate)]
        return [phased(phases, given.cv, given.lengths, np.random.default_rng(options.seed))]

    with set_up(options, given, given.warm_s + given.idle_s + given.seconds + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        alone, offline = paced_alone(comparison, pace, loads, 2 * each_s, offline_too=True)
        assert offline is not None
        setting, sweep = swept(comparison, alone[0][0].loads[0], quick=options.quick)
        found = [_systems(comparison.point(number), paced, online, setting) for number, (paced, (online,)) in enumerate(alone)]
        prices, work = stock_prices(place.folder)
        points = [
            {**paced.line(), **_outcome(stretches, given, offline, prices)} for (paced, _), stretches in zip(alone, found, strict=True)
        ]
        shown = described(replace(given, rate=alone[0][0].rate), place)
        return shown | {"phase_s": each_s, **first_of(points, pace), "work": work, "vllm_priority_sweep": sweep}


def _systems(comparison: Comparison, paced: Paced, online: Stretch, setting: Setting) -> dict[str, Stretch]:
    (mixed,) = priority(comparison, paced.loads, setting)
    label = f"harvester-{comparison.seed}"
    (ours,), _ = harvester(comparison, paced.loads, online.p99(), label=label)
    return {"online_only": online, "vllm_priority": mixed, "harvester": ours}


def _outcome(found: Mapping[str, Stretch], given: Knobs, offline: Span, prices: Prices) -> dict[str, Any]:
    """Systems and ratios of one comparison."""
    slo, each_s = found["online_only"].p99(), given.seconds / len(NAMES)
    parts = {name: (each_s * index, each_s * (index + 1)) for index, name in enumerate(NAMES)}
    chat = [parts["on"], parts["on_again"]]
    systems = {
        name: stretch.summary(slo)
        | accounts([stretch], chat, given.settle_s, prices)
        | {"phases": {phase: account([stretch], [part], prices) for phase, part in parts.items()}}
        for name, stretch in found.items()
    }
    systems["offline_only"] = offline_system(offline, round(given.step_tokens), prices)
    idle = systems["harvester"]["phases"]["off"]["offline_tokens_per_s"]
    extra = {"offline_tokens_idle_harvester_over_offline_only": over(idle, offline.tokens_per_s)}
    return {"systems": systems, "ratios": ratios(systems) | account_ratios(systems) | extra}
