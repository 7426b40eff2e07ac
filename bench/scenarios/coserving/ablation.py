"""Scenario ``ablation``: the parts of harvester's scheduler turned on one after the other (ConServe 6.4.1, Fig. 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, harvester, over, priority
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import synthetic
from bench.harness.options import Options
from bench.harness.paced import Pace, paced_alone
from bench.harness.sweep import swept
from harvester.errors import UsageError

FULL = Knobs(seconds=90.0)
QUICK = replace(SHORT, seconds=15.0, window_s=3.0)
SHARES = (0.25,)
NOTHING: dict[str, Any] = {"budget": "fixed", "reserve": "fixed", "safepoints": "off", "online_order": "fcfs"}
PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("budget", {"budget": "slo"}),
    ("reserve", {"reserve": "bursts"}),
    ("safepoints", {"safepoints": "auto"}),
    ("mlfq", {"online_order": "mlfq"}),
)
SWITCHES: dict[str, dict[str, Any]] = {  # each by itself, beside all parts
    "half the delay": {"max_ttft_delay_fraction": 0.1},
    "mixed steps may end": {"safepoints": "all"},
    "TPOT as a mean": {"tpot": "mean"},
}


def variants(quick: bool) -> dict[str, dict[str, Any]]:
    """Section ``schedule`` of each system: none of the parts, then one more in each until all are on, then all with one switch turned.

    Quick: none, and all.
    """
    found = {"none": dict(NOTHING)}
    schedule = dict(NOTHING)
    for name, switch in PARTS:
        schedule = schedule | switch
        found[f"+{name}"] = schedule
    if quick:
        return {name: found[name] for name in (*list(found)[:1], *list(found)[-1:])}
    return found | {name: schedule | switch for name, switch in SWITCHES.items()}


def run(options: Options) -> dict[str, Any]:
    """One pace of chat. Raises `UsageError` for several."""
    given, pace = knobs(options, FULL, QUICK), Pace.of(options, SHARES)
    if pace.points > 1:
        raise UsageError("ablation has one load: give one --share")

    def loads(rate: float) -> list[Load]:
        return [synthetic(rate, given.cv, given.seconds, given.lengths, np.random.default_rng(options.seed))]

    with set_up(options, given, given.warm_s + given.seconds + 90) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        ((paced, (online,)),), _ = paced_alone(comparison, pace, loads, given.seconds, offline_too=False)
        slo = online.p99()
        systems, sweep = {"online_only": online.summary(slo)}, list[dict[str, Any]]()
        if not options.quick:
            setting, sweep = swept(comparison, paced.loads[0], quick=False)
            systems["vllm_priority"] = priority(comparison, paced.loads, setting)[0].summary(slo)
        for index, (name, schedule) in enumerate(variants(options.quick).items()):
            (found,), _ = harvester(comparison, paced.loads, slo, {"schedule": schedule}, label=f"harvester-{index}")
            systems[name] = found.summary(slo) | {"schedule": schedule}
        shown = described(replace(given, rate=paced.rate), place)
        return shown | {"chat": paced.line(), "systems": systems, "ratios": _ratios(systems), "vllm_priority_sweep": sweep}


def _ratios(systems: dict[str, Any]) -> dict[str, float | None]:
    """Each variant against chat alone, and against none of the parts."""
    found: dict[str, float | None] = {}
    for name, system in systems.items():
        if name != "online_only":
            found[f"p99_ttft_{name}_over_online_only"] = over(system["ttft_ms"]["p99"], systems["online_only"]["ttft_ms"]["p99"])
        if name not in ("online_only", "none"):
            found[f"offline_tokens_{name}_over_none"] = over(system["offline_tokens_per_s"], systems["none"]["offline_tokens_per_s"])
    return found
