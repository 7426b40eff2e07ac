"""Scenario ``cycle``: chat and none in turns, over whole cycles, beside batch work that never ends.

What a system gets done is counted from the end of one idle phase to the end of another, where the engine's state is the same again. A
shorter stretch rewards a scheduler that takes prompts now and leaves their answers for later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, Setting, account_ratios, harvester, priority, ratios
from bench.harness.knobs import SHORT, Knobs, described, knobs, set_up
from bench.harness.load.arrivals import phased
from bench.harness.measure.account import THREE, Part, account, accounts
from bench.harness.measure.prices import Prices, stock_prices
from bench.harness.measure.rounds import ratio_of_rounds, whole_number, without
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options
from bench.harness.paced import Pace, Paced, first_of, paced_alone
from bench.harness.sweep import swept
from harvester.errors import UsageError

FULL = Knobs(seconds=240.0, idle_s=20.0)
QUICK = replace(SHORT, seconds=32.0, idle_s=6.0, window_s=2.0)
CYCLES, QUICK_CYCLES = 4, 2
ROWS_GOAL, TTFT_GOAL, LATE_GOAL = 0.98, 1.10, 0.01


def run(options: Options) -> dict[str, Any]:
    """``--set cycles=N``: how many in ``seconds``, each with ``idle_s`` without chat at its end."""
    cycles = whole_number("cycles", options.set, QUICK_CYCLES if options.quick else CYCLES)
    given = knobs(without("cycles", options), FULL, QUICK)
    pace, chat = Pace.of(options), chat_parts(given.seconds, given.idle_s, cycles)
    on_s = sum(end_s - begin_s for begin_s, end_s in chat)

    def loads(rate: float) -> list[Load]:
        phases = [(seconds, part) for begin_s, end_s in chat for seconds, part in ((end_s - begin_s, rate), (given.idle_s, 0.0))]
        return [phased(phases, given.cv, given.lengths, np.random.default_rng(options.seed))]

    with set_up(options, given, given.warm_s + given.idle_s + given.seconds + 60) as place:
        # Each run begins in the state in which it ends: after an idle phase.
        comparison = Comparison(place, replace(given, warm_s=given.warm_s + given.idle_s), options.seed, given.seconds)
        alone, _ = paced_alone(comparison, pace, loads, on_s, offline_too=False)
        setting, sweep = swept(comparison, alone[0][0].loads[0], quick=options.quick)
        found = [_systems(comparison.point(number), paced, online, setting) for number, (paced, (online,)) in enumerate(alone)]
        prices, work = stock_prices(place.folder)
        points = [{**paced.line(), **outcome(stretches, chat, given, prices)} for (paced, _), stretches in zip(alone, found, strict=True)]
        shown = described(replace(given, rate=alone[0][0].rate), place)
        more = {"work": work, "vllm_priority_sweep": sweep}
        return shown | {"cycles": cycles, "chat_s": round(on_s / cycles, 3), **first_of(points, pace), **more}


def chat_parts(seconds: float, idle_s: float, cycles: int) -> list[Part]:
    """When chat comes. Raises `UsageError` where the cycles are too short for that."""
    each_s = seconds / cycles
    if each_s <= idle_s:
        raise UsageError(f"{cycles} cycles in {seconds:g} s have no time for chat beside {idle_s:g} s without; give more --seconds")
    return [(each_s * number, each_s * (number + 1) - idle_s) for number in range(cycles)]


def _systems(comparison: Comparison, paced: Paced, online: Stretch, setting: Setting) -> dict[str, Stretch]:
    """Each on a fresh server, with the same load."""
    (mixed,) = priority(comparison, paced.loads, setting)
    (ours,), _ = harvester(comparison, paced.loads, online.p99(), label=f"harvester-{comparison.seed}")
    return {"online_only": online, "vllm_priority": mixed, "harvester": ours}


def outcome(found: Mapping[str, Stretch], chat: list[Part], given: Knobs, prices: Prices) -> dict[str, Any]:
    """Systems, ratios, their spread over the cycles, and the goals."""
    slo = found["online_only"].p99()
    ends_s = [*(begin_s for begin_s, _ in chat[1:]), given.seconds]
    cycles = [(begin_s, end_s) for (begin_s, _), end_s in zip(chat, ends_s, strict=True)]
    quiet = [(chat_s, end_s) for (_, chat_s), end_s in zip(chat, ends_s, strict=True)]
    systems = {
        name: stretch.summary(slo)
        | accounts([stretch], chat, given.settle_s, prices)
        | {"chat": account([stretch], chat, prices), "idle": account([stretch], quiet, prices)}
        | {"cycles": [account([stretch], [part], prices) for part in cycles]}
        for name, stretch in found.items()
    }
    divided = ratios(systems) | account_ratios(systems)
    late = systems["harvester"]["late_gaps_share"]
    return {"systems": systems, "ratios": divided, "spread": _spread(systems), "goals": goals(divided, late)}


def _spread(systems: Mapping[str, Any]) -> dict[str, Any]:
    """harvester over the peer, cycle by cycle."""
    pairs = {kind: [[each[kind] for each in systems[name]["cycles"]] for name in ("harvester", "vllm_priority")] for kind in THREE}
    measured = {kind: pair for kind, pair in pairs.items() if None not in (*pair[0], *pair[1])}
    return {f"{kind.removesuffix('_per_s')}_harvester_over_vllm_priority": ratio_of_rounds(*pair) for kind, pair in measured.items()}


def goals(divided: Mapping[str, float | None], late: float | None) -> dict[str, dict[str, Any]]:
    """Each with what was measured and whether that meets it."""
    rows, ttft = divided["rows_harvester_over_vllm_priority"], divided["p99_ttft_harvester_over_online_only"]
    return {
        f"rows_over_vllm_priority_at_least_{ROWS_GOAL}": {"measured": rows, "met": rows is not None and rows >= ROWS_GOAL},
        f"p99_ttft_over_online_only_at_most_{TTFT_GOAL:.2f}": {"measured": ttft, "met": ttft is not None and ttft <= TTFT_GOAL},
        f"late_gaps_share_at_most_{LATE_GOAL}": {"measured": late, "met": late is not None and late <= LATE_GOAL},
    }
