"""Scenario ``coserve``: chat of a real trace beside batch work, each alone, and vLLM's priority policy (ConServe 6.2, Fig. 5).

First stock vLLM with chat alone: its P99 TTFT and TPOT are the SLO of everything after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.arrivals import read_trace, replay
from bench.compare import (
    Ground,
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
from bench.knobs import described, knobs, site
from bench.measure import Span
from bench.scenario import Options

MOST = (4096, 512)  # tokens of one online prompt and answer
OFFLINE_STEPS = (2048, 4096, 8192)
SWEEP_PART = 3  # a setting of the sweep runs this part of the time


def run(options: Options) -> dict[str, Any]:
    given = knobs(options)
    trace, generator = read_trace(), np.random.default_rng(options.seed)
    load = replay(trace, given.rate, given.seconds, given.trace_scale, MOST, generator)
    with site(options, given, given.warm_s + given.idle_s + given.seconds + 60) as place:
        ground = Ground(place, given, options.seed, given.seconds)
        (online,), alone = stock_alone(ground, [load], offline_too=options.quick)
        slo = online.p99()
        steps, offline = (round(given.step_tokens), alone) if alone is not None else _best_offline(ground)
        sweep = [] if options.quick else _sweep(ground, load)
        chosen = best_of(sweep) if sweep else Setting.usual(given)
        (mixed,) = priority(ground, [load], chosen)
        (ours,), ours_idle = harvester(ground, [load], slo, idle_s=given.idle_s)
        systems = {
            "online_only": online.summary(slo),
            "offline_only": offline_system(offline, steps),
            "vllm_priority": mixed.summary(slo) | {"step_tokens": chosen.step_tokens, "concurrency": chosen.concurrency},
            "harvester": ours.summary(slo) | {"idle_offline_tokens_per_s": ours_idle.tokens_per_s if ours_idle else None},
        }
        lines = [line for line, _, _ in sweep]
        return described(given, place) | {"systems": systems, "ratios": ratios(systems, ours_idle, offline), "vllm_priority_sweep": lines}


Swept = tuple[dict[str, Any], Setting, Any]


def _sweep(ground: Ground, load: Load) -> list[Swept]:
    """`vllm_priority` at several settings, with the first part of the load."""
    seconds = ground.seconds / SWEEP_PART
    short = replace(ground, seconds=seconds)
    part = [arrival for arrival in load if arrival.at_s < seconds]
    found: list[Swept] = []
    for setting in settings(round(ground.knobs.slots), round(ground.knobs.concurrency)):
        (measured,) = priority(short, [part], setting)
        found.append((sweep_line(setting, measured), setting, measured))
    return found


def settings(slots: int, concurrency: int) -> list[Setting]:
    """Small to large steps, with more offline requests open than there are slots, and with a quarter of the slots left free."""
    return [Setting(steps, open_) for open_ in (concurrency, slots * 3 // 4) for steps in (512, 2048, 4096)]


def best_of(sweep: list[Swept]) -> Setting:
    return best_priority({setting: measured for _, setting, measured in sweep})


def _best_offline(ground: Ground) -> tuple[int, Span]:
    found = {steps: offline_alone(ground, steps) for steps in OFFLINE_STEPS}
    best = max(found, key=lambda steps: found[steps].tokens_per_s)
    return best, found[best]
