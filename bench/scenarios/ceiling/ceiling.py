"""Scenario ``ceiling``: how much of the best possible work is done beside chat, in virtual time.

- chat_alone: stock vLLM, first come, first served. Its P99s are the SLO of the others.
- vllm_priority: stock vLLM with its priority policy.
- harvester: the brain that the engine holds, with its shipped defaults.
- bound: what no system exceeds whose every gap keeps the SLO, see `bench.scenarios.ceiling.bound`.

Work is what the computed tokens are worth in seconds of a well filled step, of chat and rows, none of them computed twice. It
tells a system that computes much from one that computes what is cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from bench.harness.compare import over
from bench.harness.options import Options
from bench.scenarios.ceiling.bound import Bound, best
from bench.scenarios.ceiling.cases import CASES, Case
from bench.scenarios.ceiling.systems import SETTLED_S, Bench, Played
from harvester.errors import UsageError
from harvester.sim.measure import percentile

SECONDS, QUICK_SECONDS = 100.0, 40.0
SEEDS, QUICK_SEEDS = 4, 1
SPANS = {"from_the_start": 0.0, "settled": SETTLED_S}
COUNTED = {
    "work_per_s": attrgetter("work_s"),
    "tokens_per_s": attrgetter("tokens"),
    "offline_tokens_per_s": attrgetter("offline_tokens"),
    "rows_per_s": attrgetter("rows"),
}
GOALS = {
    "8b_a100": {"work_over_bound": 0.97, "ttft_p99_over_alone": 1.15},
    "8b_h200": {"work_over_bound": 0.97, "ttft_p99_over_alone": 1.15},
    "70b_4xh200": {"work_over_bound": 0.95, "ttft_p99_over_alone": 1.15},
    "cpu_trace": {"tokens_over_priority": 0.88, "ttft_p99_over_alone": 1.1},
    "cpu_bursts": {"tokens_over_priority": 0.8, "ttft_p99_over_alone": 1.3},
}


@dataclass(frozen=True, slots=True)
class Round:
    """One seed: every system, and the bound of each span. ``slo``: seconds of first token and gap."""

    systems: dict[str, Played]
    bounds: dict[str, Bound]
    slo: tuple[float, float]


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of chat, above the 15 that are left out of `settled`; ``--set seeds=N``: how many draws of it."""
    unknown = options.set.keys() - {"seeds"}
    if unknown:
        raise UsageError(f"--set {min(unknown)}: this scenario knows seeds only")
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    if seconds <= SETTLED_S:
        raise UsageError(f"--seconds {seconds:g} is not above {SETTLED_S:g}, from which figures are counted once more; give more")
    seeds = round(options.set.get("seeds", QUICK_SEEDS if options.quick else SEEDS))
    if seeds < 1:
        raise UsageError(f"--set seeds={seeds}: give 1 or more")
    cases = {}
    for name, case in CASES.items():
        rounds = [played(case, seconds, options.seed + number) for number in range(seeds)]
        cases[name] = summary(rounds, seconds)
        print(f"{name}: {cases[name]['ratios']}", file=sys.stderr)
    return {
        "model": "simulated",
        "engine": {"seconds_each": seconds, "seeds": seeds},
        "cases": cases,
        "ratios": {name: case["ratios"] for name, case in cases.items()},
        "goals": goals_of({name: case["ratios"] for name, case in cases.items()}),
    }


def played(case: Case, seconds: float, seed: int) -> Round:
    """All systems with one draw of chat and rows."""
    bench = Bench(case, seconds, seed)
    alone = bench.chat_alone()
    ttft_s, gap_s = percentile(alone.ttft_s, 0.99), percentile(alone.gaps_s, 0.99)
    systems = {"chat_alone": alone, "vllm_priority": bench.priority(), "harvester": bench.harvester(ttft_s, gap_s)}
    bounds = {span: best(bench.room, bench.chat, bench.rows(), gap_s, (begin_s, seconds)) for span, begin_s in SPANS.items()}
    return Round(systems, bounds, (ttft_s, gap_s))


def summary(rounds: Sequence[Round], seconds: float) -> dict[str, Any]:
    """Of all seeds together. Percentiles are of all their requests."""
    systems = {name: _system([(one.systems[name], one.slo) for one in rounds]) for name in rounds[0].systems}
    bound = {span: _bound([one.bounds[span] for one in rounds], seconds - begin_s) for span, begin_s in SPANS.items()}
    return {"systems": systems | {"bound": bound}, "ratios": ratios_of(systems, bound)}


def ratios_of(systems: dict[str, Any], bound: dict[str, Any]) -> dict[str, float | None]:
    """Of harvester. Work from the start; tokens from the fifteenth second of chat, after a stretch that begins with every slot decoding."""
    ours, alone, priority = (systems[name] for name in ("harvester", "chat_alone", "vllm_priority"))
    return {
        "work_over_bound": over(ours["from_the_start"]["work_per_s"], bound["from_the_start"]["work_per_s"]),
        "tokens_over_priority": over(ours["settled"]["tokens_per_s"], priority["settled"]["tokens_per_s"]),
        "tokens_bound_over_priority": over(bound["settled"]["tokens_per_s"], priority["settled"]["tokens_per_s"]),
        **{f"ttft_{share}_over_alone": over(ours["ttft_s"][share], alone["ttft_s"][share]) for share in ("p50", "p99")},
        "late_gaps": ours["late_gaps"],
    }


def goals_of(ratios: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    """Throughput is to reach its goal, TTFT not to pass it."""
    goals = {}
    for case, wanted in GOALS.items():
        for figure, goal in wanted.items():
            found = ratios[case][figure]
            met = found is not None and (found <= goal if figure.startswith("ttft") else found >= goal)
            goals[f"{case}_{figure}"] = {"goal": goal, "measured": found, "met": met}
    return goals


def _system(runs: Sequence[tuple[Played, tuple[float, float]]]) -> dict[str, Any]:
    gaps = [(gap_s, slo[1]) for one, slo in runs for gap_s in one.gaps_s]
    ttft_s = [each for one, _ in runs for each in one.ttft_s]
    return {
        **{span: _rates([one for one, _ in runs], place) for place, span in enumerate(SPANS)},
        "ttft_s": _percentiles(ttft_s),
        "tpot_s": _percentiles([gap_s for gap_s, _ in gaps]),
        "late_gaps": round(sum(gap_s > slo_s for gap_s, slo_s in gaps) / max(1, len(gaps)), 5),
    }


def _rates(runs: Sequence[Played], begin: int) -> dict[str, float]:
    spans = [(one.marks[begin], one.marks[-1]) for one in runs]
    seconds = sum(last.at_s - first.at_s for first, last in spans)
    return {name: round(sum(of(last) - of(first) for first, last in spans) / seconds, 4) for name, of in COUNTED.items()}


def _bound(bounds: Sequence[Bound], seconds: float) -> dict[str, float]:
    return {name: round(sum(map(of, bounds)) / len(bounds) / seconds, 4) for name, of in COUNTED.items()}


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": round(percentile(values, share), 5) for share in (0.5, 0.9, 0.99)}
