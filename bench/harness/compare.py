"""Runs of the systems that the co-serving scenarios compare, each on a server of its own, and the ratios between them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.knobs import LEAD_S, Knobs
from bench.harness.load.arrivals import Arrival
from bench.harness.measure.account import THREE
from bench.harness.measure.latency import Slo, online_summary
from bench.harness.measure.prices import Prices
from bench.harness.measure.stretch import Span, Stretch, idle, stretch
from bench.harness.servers.systems import Harvester, Stock, SystemSetup

Load = Sequence[Arrival]
LEAD_SEED = 250  # added to the load's seed, so that the prompts differ
POINT_SEEDS = 1000  # distance between the seeds of two points; each load of a point has its own
SUMMARIES = ("ttft_ms", "tpot_ms")
SHORT = {name: name.removesuffix("_per_s") for name in THREE}  # in the name of a ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    """What every run of a scenario shares."""

    setup: SystemSetup
    knobs: Knobs
    seed: int  # of the prompts
    seconds: float  # of one load

    def point(self, number: int) -> Comparison:
        """As this, with other prompts: those of an earlier point on the same server would be in its prefix cache."""
        return replace(self, seed=self.seed + POINT_SEEDS * number)


def stock_alone(comparison: Comparison, loads: Sequence[Load], *, offline_too: bool) -> tuple[list[Stretch], Span | None]:
    """Stock vLLM, fcfs: each load alone; then, on the same server, offline work alone."""
    with Stock(comparison.setup, "online_only", concurrency=round(comparison.knobs.concurrency)) as server:
        lead(comparison, server, loads, offline=False)
        found = play_all(comparison, server, loads, offline=False)
        return found, offline_beside(comparison, server) if offline_too else None


def offline_beside(comparison: Comparison, server: Stock) -> Span:
    """Offline work alone, on a server that has served chat."""
    server.begin_offline()
    time.sleep(comparison.knobs.warm_s)
    return idle(server, comparison.knobs.idle_s)


def offline_alone(comparison: Comparison, step_tokens: int) -> Span:
    """Stock vLLM, offline work alone, on a fresh server."""
    label = f"offline_only-{step_tokens}"
    given = comparison.knobs
    with Stock(comparison.setup, label, concurrency=round(given.concurrency), max_num_batched_tokens=step_tokens) as server:
        server.begin_offline()
        time.sleep(given.warm_s)
        return idle(server, given.idle_s)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the peer `vllm_priority`. With fewer offline requests open than ``max_num_seqs``, an arrival finds a slot."""

    step_tokens: int
    concurrency: int

    @classmethod
    def usual(cls, given: Knobs) -> Setting:
        """The setting without a sweep: a quarter of the slots is free, so that an arrival finds one."""
        return cls(round(given.step_tokens), round(given.slots) * 3 // 4)

    @property
    def label(self) -> str:
        """Name of the server and of its record of steps."""
        return f"vllm_priority-{self.step_tokens}-{self.concurrency}"


def priority(comparison: Comparison, loads: Sequence[Load], setting: Setting) -> list[Stretch]:
    """Stock vLLM with its priority policy, offline requests beside each load."""
    engine = {"max_num_batched_tokens": setting.step_tokens}
    with Stock(comparison.setup, setting.label, policy="priority", concurrency=setting.concurrency, **engine) as server:
        server.begin_offline()
        lead(comparison, server, loads, offline=True)
        time.sleep(comparison.knobs.warm_s)
        return play_all(comparison, server, loads, offline=True)


def harvester(
    comparison: Comparison,
    loads: Sequence[Load],
    slo: Slo,
    config: Mapping[str, Any] | None = None,
    *,
    label: str = "harvester",
    idle_s: float = 0.0,
) -> tuple[list[Stretch], Span | None]:
    """harvester with a job beside each load, configured with ``slo``; with ``idle_s``, first the job alone for that long.

    That span comes before any chat: harvester keeps a reserve for `PolicyConfig.reserve_s` after it.
    """
    objectives = {"ttft_slo_ms": round(slo.ttft_ms, 3), "tpot_slo_ms": round(slo.tpot_ms, 3)}
    with Harvester(comparison.setup, label, {"slo": objectives, **(config or {})}) as server:
        server.begin_offline()
        alone = None
        if idle_s:
            time.sleep(comparison.knobs.warm_s)
            alone = idle(server, idle_s)
        lead(comparison, server, loads, offline=True)
        time.sleep(comparison.knobs.warm_s)
        return play_all(comparison, server, loads, offline=True), alone


def lead(comparison: Comparison, server: Stock | Harvester, loads: Sequence[Load], *, offline: bool) -> None:
    """Unmeasured chat: a server that has just started is slower, and harvester has not learned its step times yet."""
    part, seconds = lead_of(loads[0], comparison.seconds)
    drawn: dict[str, Any] = {"seed": comparison.seed + LEAD_SEED, "offline": offline}
    stretch(server, comparison.setup, part, seconds, seconds, drain_s=comparison.knobs.drain_s, **drawn)


def lead_of(load: Load, load_s: float) -> tuple[Load, float]:
    """The begin of a load of ``load_s`` that `lead` plays, and how long it is in seconds."""
    seconds = min(LEAD_S, load_s / 2)
    return [arrival for arrival in load if arrival.at_s < seconds], seconds


def play_all(comparison: Comparison, server: Stock | Harvester, loads: Sequence[Load], *, offline: bool) -> list[Stretch]:
    """One load after the other on one system, each with prompts of its own: those of an earlier one are in the prefix cache."""
    return [_play(comparison, server, load, comparison.seed + number, offline=offline) for number, load in enumerate(loads)]


def _play(comparison: Comparison, server: Stock | Harvester, load: Load, seed: int, *, offline: bool) -> Stretch:
    """Play one load. Its figures are printed at once, so that a long scenario that is cut off leaves results."""
    given = comparison.knobs
    drawn: dict[str, Any] = {"seed": seed, "offline": offline}
    found = stretch(server, comparison.setup, load, comparison.seconds, given.window_s, drain_s=given.drain_s, **drawn)
    chat = online_summary(found.requests)
    told = {"requests": chat["online_requests"], **{kind: chat[kind] for kind in SUMMARIES}, **found.rates()}
    print(f"{server.label}: {json.dumps(told)}", file=sys.stderr, flush=True)
    return found


def offline_system(alone: Span, step_tokens: int, prices: Prices | None = None) -> dict[str, Any]:
    """The entry of `offline_only` under ``systems``."""
    work_s = sum(map(prices.step_s, alone.steps)) if prices is not None else None
    nothing = {"p50": None, "p90": None, "p99": None}
    return {
        **dict.fromkeys(SUMMARIES, nothing),
        "online_requests": 0,
        "online_tokens_per_s": 0.0,
        "offline_tokens_per_s": alone.tokens_per_s,
        "total_tokens_per_s": alone.tokens_per_s,
        "rows_per_s": round(len(alone.rows_s) / alone.seconds, 4),
        "work_per_s": round(work_s / alone.seconds, 4) if work_s is not None else None,
        "recomputed_tokens": 0,
        "recomputed_share": 0.0,
        "preemptions": 0,
        "seconds": alone.seconds,
        "step_tokens": step_tokens,
    }


def over(above: float | None, below: float | None) -> float | None:
    """A ratio; None where one side was not measured or the lower one is 0."""
    return round(above / below, 3) if above is not None and below else None


def ratios(systems: Mapping[str, Any], alone: Span | None = None, offline_only: Span | None = None) -> dict[str, float | None]:
    """The goals' figures, by name, from the summaries of `online_only`, `vllm_priority` and `harvester`."""

    def of(kind: str, name: str) -> float | None:
        value: Any = systems.get(name, {}).get(kind)
        found: float | None = value["p99"] if isinstance(value, dict) else value
        return found

    found = {}
    for kind in SUMMARIES:
        short = f"p99_{kind.removesuffix('_ms')}"
        found[f"{short}_harvester_over_online_only"] = over(of(kind, "harvester"), of(kind, "online_only"))
        found[f"{short}_vllm_priority_over_harvester"] = over(of(kind, "vllm_priority"), of(kind, "harvester"))
    for kind in ("total_tokens", "offline_tokens"):
        rate = f"{kind}_per_s"
        found[f"{kind}_harvester_over_vllm_priority"] = over(of(rate, "harvester"), of(rate, "vllm_priority"))
    found["total_tokens_harvester_over_online_only"] = over(of("total_tokens_per_s", "harvester"), of("total_tokens_per_s", "online_only"))
    if offline_only is not None:
        idle_rate = alone.tokens_per_s if alone is not None else None
        found["offline_tokens_idle_harvester_over_offline_only"] = over(idle_rate, offline_only.tokens_per_s)
    return found


def account_ratios(systems: Mapping[str, Any], one: str = "harvester", other: str = "vllm_priority") -> dict[str, float | None]:
    """Ratios of rows and work, and of all three rates once chat has settled (`bench.harness.measure.account`)."""
    ours, theirs = systems[one], systems[other]
    found = {f"{SHORT[name]}_{one}_over_{other}": over(ours[name], theirs[name]) for name in THREE[1:]}
    late = {f"settled_{SHORT[name]}_{one}_over_{other}": over(ours["settled"][name], theirs["settled"][name]) for name in THREE}
    return found | late
