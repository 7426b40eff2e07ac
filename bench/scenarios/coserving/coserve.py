"""Scenario ``coserve``: chat of a real trace beside batch work, each alone, and vLLM's priority policy (ConServe 6.2, Fig. 5).

First stock vLLM with chat alone: its P99 TTFT and TPOT are the SLO of everything after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from bench.harness.compare import (
    Comparison,
    Load,
    Setting,
    best_priority,
    harvester,
    offline_alone,
    offline_system,
    priority,
    ratios,
    stock_alone,
    sweep_line,
)
from bench.harness.knobs import described, knobs, set_up
from bench.harness.load.arrivals import read_trace, replay
from bench.harness.measure.rounds import in_turns, ratio_of_percentiles, ratio_of_rounds, rounds_of
from bench.harness.measure.stretch import Span, Stretch, summary_of
from bench.harness.options import Options

MOST = (4096, 512)  # tokens of one online prompt and answer
OFFLINE_STEPS = (2048, 4096, 8192)
SWEEP_PART = 3  # a setting of the sweep runs this part of the time
ROUNDS, QUICK_ROUNDS = 2, 1


def run(options: Options) -> dict[str, Any]:
    """``--set rounds=N``: how often each system gets the load, in turns; percentiles are those of all rounds together."""
    rounds = rounds_of(options.set, QUICK_ROUNDS if options.quick else ROUNDS)
    given = knobs(replace(options, set={name: value for name, value in options.set.items() if name != "rounds"}))
    trace, generator = read_trace(), np.random.default_rng(options.seed)
    load = replay(trace, given.rate, given.seconds, given.trace_scale, MOST, generator)
    with set_up(options, given, given.warm_s + given.idle_s + given.seconds + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        (online,), alone = stock_alone(comparison, [load], offline_too=options.quick)
        slo = online.p99()
        steps, offline = (round(given.step_tokens), alone) if alone is not None else _best_offline(comparison)
        sweep = [] if options.quick else _sweep(comparison, load)
        chosen = best_of(sweep) if sweep else Setting.usual(given)
        idles: list[Span] = []

        def measure(name: str, number: int) -> Stretch:
            if name == "online_only":
                return online if number == 0 else stock_alone(comparison, [load], offline_too=False)[0][0]
            if name == "vllm_priority":
                return priority(comparison, [load], chosen)[0]
            (ours,), ours_idle = harvester(comparison, [load], slo, label=f"{name}-{number}", idle_s=given.idle_s)
            idles.extend([ours_idle] if ours_idle is not None else [])
            return ours

        found = in_turns(("online_only", "vllm_priority", "harvester"), rounds, measure)
        summaries = {name: summary_of(stretches, slo) for name, stretches in found.items()}
        ours_idle = mean_of(idles)
        systems = {
            "online_only": summaries["online_only"],
            "offline_only": offline_system(offline, steps),
            "vllm_priority": summaries["vllm_priority"] | {"step_tokens": chosen.step_tokens, "concurrency": chosen.concurrency},
            "harvester": summaries["harvester"] | {"idle_offline_tokens_per_s": ours_idle.tokens_per_s if ours_idle else None},
        }
        lines = [line for line, _, _ in sweep]
        return described(given, place) | {
            "rounds": rounds,
            "systems": systems,
            "ratios": ratios(systems, ours_idle, offline),
            "spread": spread(found, options.seed),
            "vllm_priority_sweep": lines,
        }


def spread(found: Mapping[str, Sequence[Stretch]], seed: int) -> dict[str, dict[str, Any]]:
    """Where the ratios lie that noise moves: of percentiles in resampled rounds and requests, of throughput round by round."""

    def values(name: str, kind: str) -> list[list[float]]:
        return [stretch.ttft_ms() if kind == "ttft" else stretch.tpot_ms() for stretch in found[name]]

    pairs = (("harvester", "online_only"), ("vllm_priority", "harvester"))
    spreads = {
        f"p99_{kind}_{one}_over_{other}": ratio_of_percentiles(values(one, kind), values(other, kind), 99, seed)
        for kind in ("ttft", "tpot")
        for one, other in pairs
    }
    totals = {name: [stretch.rates()["total_tokens_per_s"] for stretch in stretches] for name, stretches in found.items()}
    return spreads | {"total_tokens_harvester_over_vllm_priority": ratio_of_rounds(totals["harvester"], totals["vllm_priority"])}


def mean_of(spans: Sequence[Span]) -> Span | None:
    """Of equally long ones."""
    return Span(round(fmean(span.tokens_per_s for span in spans), 1), sum(span.seconds for span in spans)) if spans else None


Swept = tuple[dict[str, Any], Setting, Any]


def _sweep(comparison: Comparison, load: Load) -> list[Swept]:
    """`vllm_priority` at several settings, with the first part of the load."""
    seconds = comparison.seconds / SWEEP_PART
    short = replace(comparison, seconds=seconds)
    part = [arrival for arrival in load if arrival.at_s < seconds]
    found: list[Swept] = []
    for setting in settings(round(comparison.knobs.slots), round(comparison.knobs.concurrency)):
        (measured,) = priority(short, [part], setting)
        found.append((sweep_line(setting, measured), setting, measured))
    return found


def settings(slots: int, concurrency: int) -> list[Setting]:
    """Small to large steps, with more offline requests open than there are slots, and with a quarter of the slots left free."""
    return [Setting(steps, open_) for open_ in (concurrency, slots * 3 // 4) for steps in (512, 2048, 4096)]


def best_of(sweep: list[Swept]) -> Setting:
    return best_priority({setting: measured for _, setting, measured in sweep})


def _best_offline(comparison: Comparison) -> tuple[int, Span]:
    found = {steps: offline_alone(comparison, steps) for steps in OFFLINE_STEPS}
    best = max(found, key=lambda steps: found[steps].tokens_per_s)
    return best, found[best]
