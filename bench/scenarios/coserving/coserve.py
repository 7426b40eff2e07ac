"""Scenario ``coserve``: chat of a real trace beside batch work, each alone, and vLLM's priority policy (ConServe 6.2, Fig. 5).

First stock vLLM with chat alone: its P99 TTFT and TPOT are the SLO of everything after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from bench.harness.compare import (
    Comparison,
    Setting,
    account_ratios,
    harvester,
    offline_alone,
    offline_system,
    priority,
    ratios,
    stock_alone,
)
from bench.harness.knobs import Knobs, described, knobs, set_up
from bench.harness.load.arrivals import read_trace, replay, stretched
from bench.harness.measure.account import accounts
from bench.harness.measure.latency import Slo
from bench.harness.measure.prices import Prices, stock_prices
from bench.harness.measure.rounds import in_turns, ratio_of_percentiles, ratio_of_rounds, rounds_of, without
from bench.harness.measure.stretch import Span, Stretch, summary_of
from bench.harness.options import Options
from bench.harness.paced import Make, Pace, Paced, first_of, paced_alone
from bench.harness.sweep import swept

MOST = (4096, 512)  # tokens of one online prompt and answer
OFFLINE_STEPS = (256, 512, 1024, 2048, 4096)
ROUNDS, QUICK_ROUNDS = 2, 1
SYSTEMS = ("online_only", "vllm_priority", "harvester")


def run(options: Options) -> dict[str, Any]:
    """``--set rounds=N``: how often each system gets the load, in turns; percentiles are those of all rounds together.

    Each share of the engine's capacity for chat is a comparison of its own. The peer's setting is swept at the first.
    """
    rounds = rounds_of(options.set, QUICK_ROUNDS if options.quick else ROUNDS)
    given = knobs(without("rounds", options))
    pace = Pace.of(options)
    with set_up(options, given, 2 * given.warm_s + given.idle_s + given.seconds + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        alone, idle = paced_alone(comparison, pace, trace_loads(given, options.seed, pace), given.seconds, offline_too=options.quick)
        steps, offline = (round(given.step_tokens), idle) if idle is not None else _best_offline(comparison)
        setting, sweep = swept(comparison, alone[0][0].loads[0], quick=options.quick)
        base = _Base(comparison, setting, rounds, (steps, offline))
        measured = [(paced, base.at(number, paced, online)) for number, (paced, (online,)) in enumerate(alone)]
        prices, work = stock_prices(place.folder)
        points = [{**paced.line(), **found.outcome(base, prices)} for paced, found in measured]
        return described(replace(given, rate=alone[0][0].rate), place) | {
            "rounds": rounds,
            **first_of(points, pace),
            "work": work,
            "vllm_priority_sweep": sweep,
        }


def trace_loads(given: Knobs, seed: int, pace: Pace) -> Make:
    """The loads of the trace at a rate. A given rate samples it as ConServe does (6.1), and repeats earlier results.

    A rate that follows from a share stretches the trace instead.
    """
    trace, draw = read_trace(), replay if pace.rate is not None else stretched
    return lambda rate: [draw(trace, rate, given.seconds, given.trace_scale, MOST, np.random.default_rng(seed))]


@dataclass(frozen=True, slots=True)
class _Base:
    """What the comparisons at all shares have in common. ``offline``: stock vLLM's step size with offline work alone, and its pace."""

    comparison: Comparison
    setting: Setting
    rounds: int
    offline: tuple[int, Span]

    def at(self, number: int, paced: Paced, online: Stretch) -> _Found:
        """All systems under one load, round after round. ``online``: chat alone in the first one, which sets the SLO."""
        comparison, load, slo = self.comparison.point(number), paced.loads[0], online.p99()
        idles: list[Span] = []

        def measure(name: str, turn: int) -> Stretch:
            if name == "online_only":
                return online if turn == 0 else stock_alone(comparison, [load], offline_too=False)[0][0]
            if name == "vllm_priority":
                return priority(comparison, [load], self.setting)[0]
            (ours,), ours_idle = harvester(comparison, [load], slo, label=f"{name}-{number}-{turn}", idle_s=comparison.knobs.idle_s)
            idles.extend([ours_idle] if ours_idle is not None else [])
            return ours

        return _Found(slo, in_turns(SYSTEMS, self.rounds, measure), mean_of(idles))


@dataclass(frozen=True, slots=True)
class _Found:
    """One comparison. ``idle``: harvester's job before the first chat."""

    slo: Slo
    rounds: Mapping[str, Sequence[Stretch]]
    idle: Span | None

    def outcome(self, base: _Base, prices: Prices) -> dict[str, Any]:
        """Its systems, ratios and their spread."""
        given, setting, (steps, offline) = base.comparison.knobs, base.setting, base.offline
        chat = [(0.0, given.seconds)]
        summaries = {
            name: summary_of(stretches, self.slo) | accounts(stretches, chat, given.settle_s, prices)
            for name, stretches in self.rounds.items()
        }
        systems = {
            "online_only": summaries["online_only"],
            "offline_only": offline_system(offline, steps, prices),
            "vllm_priority": summaries["vllm_priority"] | {"step_tokens": setting.step_tokens, "concurrency": setting.concurrency},
            "harvester": summaries["harvester"] | {"idle_offline_tokens_per_s": self.idle.tokens_per_s if self.idle else None},
        }
        return {
            "systems": systems,
            "ratios": ratios(systems, self.idle, offline) | account_ratios(systems),
            "spread": spread(self.rounds, base.comparison.seed),
        }


def spread(found: Mapping[str, Sequence[Stretch]], seed: int) -> dict[str, dict[str, Any]]:
    """Spread of the ratios that noise moves: percentiles by resampled rounds and requests, throughput by round."""

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
    """The mean of equally long spans."""
    return Span(round(fmean(span.tokens_per_s for span in spans), 1), sum(span.seconds for span in spans)) if spans else None


def _best_offline(comparison: Comparison) -> tuple[int, Span]:
    found = {steps: offline_alone(comparison, steps) for steps in OFFLINE_STEPS}
    best = max(found, key=lambda steps: found[steps].tokens_per_s)
    return best, found[best]
