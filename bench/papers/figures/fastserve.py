"""FastServe's figures 11 to 15: latency over output tokens against the rate, by the brain that the engine holds.

- 11 and 12: mean and P95 at a bound of 0.3 s a token.
- 13: rates at which 95% of the requests keep SLOs of both phases.
- 14: prompts so many times as long.
- 15: KV that is copied ahead of need, copied when it is needed, or computed again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.papers.figures.scale import Scale
from bench.papers.machines import Setting, beside_weights
from bench.papers.measure import sustained
from bench.papers.systems.fastserve import BRAINS, VLLM, by_vllm
from bench.scenarios.order.mlfq_sim import Setting as BrainSetting
from bench.scenarios.order.mlfq_sim import played
from harvester.policy.model.load import StepLoad
from harvester.sim.cost import GPUS, MODELS, Machine, block_copy_s, kv_blocks
from harvester.sim.measure import percentile
from harvester.sim.trace import ALPACA, SHAREGPT, Lengths, Request, gamma, stretched

A100_40 = GPUS["a100-40gb"]
BOUND_S = 0.3
BATCH = 8  # of OPT-13B (EconoServe 2.1); FastServe gives none, and says that all systems have the same
MACHINES = {
    "opt-13b": (Machine(A100_40), BATCH),
    "opt-66b": (Machine(A100_40, gpus=4), BATCH),
    "opt-175b": (Machine(A100_40, gpus=16), 16),
}
SECONDS = {"sharegpt": 90.0, "alpaca": 20.0}
LENGTHS: dict[str, Lengths] = {"sharegpt": SHAREGPT, "alpaca": ALPACA}
SYSTEMS = ("fastertransformer", VLLM, "fastserve_fcfs", "fastserve")
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5)  # of the rate of full batches
SLO_TIMES, LATE = (5, 10, 20), 0.05
PROMPT_TIMES, ABOVE_FCFS, MOST_PROMPT = (0.25, 1.0, 4.0, 16.0), 1.2, 8192
ORDERS = ("fastserve_fcfs", "fixed_priority", "naive_mlfq", "fastserve")
KV = ("fastserve", "fastserve_reactive", "fastserve_recompute")
KV_RATES = (1.0, 1.5, 2.0, 2.5, 3.0)
LARGE_BATCH, LINK_SHARES = 256, (0.8, 0.2, 0.05)
NEAR = 1.06  # of the rates: a run takes seconds


@dataclass(frozen=True, slots=True)
class Run:
    """Of the requests of one run: latency over output tokens, TTFT over the time of the prompt alone, mean gap over a decode step alone."""

    normalized_s: float
    normalized_p95_s: float
    ttft_times: tuple[float, ...]
    gap_times: tuple[float, ...]

    def in_time(self, times: float) -> float:
        """Share of requests within so many times the latency of both phases under light load."""
        found = [max(pair) <= times for pair in zip(self.ttft_times, self.gap_times, strict=True)]
        return sum(found) / len(found)


def setting_of(name: str) -> Setting:
    machine, batch = MACHINES[name]
    return replace(beside_weights(name, MODELS[name], machine), max_seqs=batch)


def run(system: str, setting: Setting, trace: Sequence[Request]) -> Run:
    """``trace`` by a system, until all of it has ended."""
    cost = setting.cost
    if system == VLLM:
        found = by_vllm(setting, trace)
        times = [(row.end_s - row.arrival_s, row.first_s - row.arrival_s, row.end_s - row.first_s) for row in found]
        ended = list(zip(trace, times, strict=True))
    else:
        brain = BrainSetting(
            cost,
            kv_blocks(setting.model, setting.machine),
            block_copy_s(setting.model, setting.machine),
            setting.max_seqs,
            2048,
            SHAREGPT,
            BOUND_S,
        )
        ended = [(one.request, (one.latency_s, one.ttft_s, one.latency_s - one.ttft_s)) for one in played(BRAINS[system], brain, trace)]
    normalized = [float(latency_s / one.output_tokens) for one, (latency_s, _, _) in ended]
    decode_s = cost(StepLoad.decode(300))
    return Run(
        float(np.mean(normalized)),
        percentile(normalized, 0.95),
        tuple(float(ttft_s / cost(StepLoad.prefill(one.prompt_tokens))) for one, (_, ttft_s, _) in ended),
        tuple(float(rest_s / max(1, one.output_tokens - 1) / decode_s) for one, (_, _, rest_s) in ended),
    )


def load_of(lengths: str, rate: float, scale: Scale, times: float = 1.0) -> list[Request]:
    trace = stretched(gamma(rate, 1.0, scale.seconds(SECONDS[lengths]), LENGTHS[lengths], random.Random(1)), times)
    return [replace(one, prompt_tokens=min(MOST_PROMPT, one.prompt_tokens)) for one in trace]


def guess(lengths: str, setting: Setting) -> float:
    """About the rate of full batches."""
    draw = random.Random(0)
    drawn = [LENGTHS[lengths].draw(draw) for _ in range(2000)]
    prompt, output = (sum(column) / len(drawn) for column in zip(*drawn, strict=True))
    seqs = min(setting.max_seqs, setting.kv_tokens / (prompt + output / 2))
    step_s = setting.cost(StepLoad(0, 0.0, int(seqs), int(seqs * (prompt + output / 2)), int(seqs)))
    return float(seqs / (output * step_s + seqs * setting.cost(StepLoad.prefill(round(prompt))) / 4))


def rates(machine: str, lengths: str, system: str, scale: Scale) -> dict[str, Any]:
    """Figures 11, 12 and 13: the curve over rising rates, and where mean and P95 cross the bound and a twentieth is late in a phase."""
    return curve(setting_of(machine), lengths, system, scale)


def curve(setting: Setting, lengths: str, system: str, scale: Scale) -> dict[str, Any]:
    first, points = guess(lengths, setting), dict[float, Run]()
    for share in scale.rates(SHARES):
        found = run(system, setting, load_of(lengths, share * first, scale))
        points[share * first] = found
        if found.normalized_s > BOUND_S:
            break
    late = {f"{times}": crossing({rate: 1.0 - one.in_time(times) for rate, one in points.items()}, LATE) for times in SLO_TIMES}
    return {
        "mean": crossing({rate: one.normalized_s for rate, one in points.items()}, BOUND_S),
        "p95": crossing({rate: one.normalized_p95_s for rate, one in points.items()}, BOUND_S),
        "goodput": late,
        "curve": {f"{rate:.3g}": round(one.normalized_s, 4) for rate, one in points.items()},
    }


def crossing(values: Mapping[float, float], bound: float) -> float:
    """The rate at which the values pass ``bound``, interpolated linearly between measured ones; below the first one from no load."""
    before = (0.0, 0.0)
    for rate, value in values.items():
        if value > bound:
            return round(before[0] + (rate - before[0]) * (bound - before[1]) / (value - before[1]), 3)
        before = rate, value
    return round(before[0], 3)


def prompt_lengths(times: float, scale: Scale) -> dict[str, float]:
    """Figure 14: mean latency over output tokens, over that of the slowest order, at a rate above that which FCFS sustains."""
    setting = setting_of("opt-13b")

    def mean_s(system: str, rate: float) -> float:
        return run(system, setting, load_of("sharegpt", rate, scale, times)).normalized_s

    rate = ABOVE_FCFS * sustained(lambda rate: mean_s("fastserve_fcfs", rate), BOUND_S, guess("sharegpt", setting), NEAR)
    found = {system: mean_s(system, rate) for system in ORDERS}
    return {"rate": round(rate, 3), **{system: round(value / max(found.values()), 3) for system, value in found.items()}}


def kv_policies(rate: float, scale: Scale) -> dict[str, Any]:
    """Figure 15a: mean latency over output tokens."""
    setting = setting_of("opt-13b")
    return {system: round(run(system, setting, load_of("sharegpt", rate, scale)).normalized_s, 4) for system in KV}


def causes(scale: Scale) -> dict[str, Any]:
    """What the figures depend on, OPT-13B and ShareGPT: the starvation time, the batch, the share of the link's peak that copies reach."""
    setting, rate = setting_of("opt-13b"), KV_RATES[-1]
    batch = replace(setting, max_seqs=LARGE_BATCH)
    links = {share: replace(setting, machine=replace(setting.machine, link_share=share)) for share in LINK_SHARES}
    load = load_of("sharegpt", rate, scale)
    return {
        "flat_starvation": curve(setting, "sharegpt", "flat_starvation", scale),
        "large_batch": {system: curve(batch, "sharegpt", system, scale) for system in (VLLM, "fastserve_fcfs")},
        "link": {f"{share:g}": {system: round(run(system, links[share], load).normalized_s, 4) for system in KV} for share in LINK_SHARES},
    }
