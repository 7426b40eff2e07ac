"""Scenario ``phases``: chat at full load, none, and again, beside batch work that never ends (ConServe 6.3.1, Fig. 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Setting, harvester, offline_system, over, priority, ratios, stock_alone
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import phased
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options

NAMES = ("on", "off", "on_again")
FULL = Knobs(seconds=270.0)
QUICK = replace(SHORT, seconds=36.0, idle_s=6.0, window_s=3.0)


def run(options: Options) -> dict[str, Any]:
    given = knobs(options, FULL, QUICK)
    each_s = given.seconds / len(NAMES)
    load = phased([(each_s, given.rate), (each_s, 0.0), (each_s, given.rate)], given.cv, given.lengths, np.random.default_rng(options.seed))
    with set_up(options, given, given.warm_s + given.idle_s + given.seconds + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        (online,), offline = stock_alone(comparison, [load], offline_too=True)
        slo = online.p99()
        (mixed,) = priority(comparison, [load], Setting.usual(given))
        (ours,), _ = harvester(comparison, [load], slo)
        found = {"online_only": online, "vllm_priority": mixed, "harvester": ours}
        systems = {name: stretch.summary(slo) | {"phases": phases(stretch)} for name, stretch in found.items()}
        assert offline is not None
        systems["offline_only"] = offline_system(offline, round(given.step_tokens))
        idle = systems["harvester"]["phases"]["off"]["offline_tokens_per_s"]
        extra = {"offline_tokens_idle_harvester_over_offline_only": over(idle, offline.tokens_per_s)}
        return described(given, place) | {"phase_s": each_s, "systems": systems, "ratios": ratios(systems) | extra}


def phases(found: Stretch) -> dict[str, dict[str, Any]]:
    """Tokens per second in each phase, by the samples next to its ends."""
    count = len(found.samples) - 1
    ends = [round(count * index / len(NAMES)) for index in range(len(NAMES) + 1)]
    return {name: found.rates(begin, end) for name, begin, end in zip(NAMES, ends[:-1], ends[1:], strict=True)}
