"""The orders of the scenario ``orders`` in virtual time: EconoServe's setting, many more requests than a real engine could answer.

OPT-13B on one A100 80 GB with 12 GB of KV in blocks of 32, ShareGPT's mean lengths (the paper's Table 2), Poisson arrivals. Chat is
admitted as vLLM does, while its prompt finds blocks; only the order differs. Predicted lengths have a log-normal error and 15%
added, as the paper pads them.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bench.harness.load.arrivals import read_lengths
from bench.harness.options import Options
from bench.scenarios.order.mlfq_sim import profiled
from bench.scenarios.order.prediction import predictors
from bench.scenarios.order.served import SLO_SCALE, Served, SloTimes, figures
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Machine, roofline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.measure import highest_rate
from harvester.sim.trace import Drawn, LogNormal, Request, gamma, promised
from harvester.sim.track import Outcome

MODEL, MACHINE = MODELS["opt-13b"], Machine(GPUS["a100-80gb"])
KV_BYTES, BLOCK_TOKENS, SLOTS, STEP_TOKENS = 12e9, 32, 256, 2048
SEQUENCE_S = 12.5e-6  # vLLM's own time for each sequence of a step
MAX_TOKENS = 991  # ShareGPT's longest answer in the paper
LENGTHS = Drawn(LogNormal(164.5, 1.1, 16, 1024), LogNormal(420.0, 0.95, 19, MAX_TOKENS))  # clipped, their means are about 161 and 366
PADDING = 1.15
BOUND_S = 0.1  # a token
FULL_KV = 0.75  # share of the KV in use, at which the time of a token is taken
RATES = (2.4, 2.7, 3.0, 3.3, 3.6, 4.0, 4.4, 4.8)
SSR_RATE = 3.0
SECONDS, QUICK_SECONDS = 400.0, 120.0
SEEDS, QUICK_SEEDS = 3, 1  # runs of each, whose requests are taken together: near capacity, one draw of lengths differs from another


@dataclass(frozen=True, slots=True)
class System:
    """``sigma``: error of the lengths told from outside, of their logarithm; None: the brain's own quantiles."""

    order: str
    sigma: float | None = 0.25


SYSTEMS = {
    "fcfs": System("fcfs"),
    "mlfq": System("mlfq"),
    "sjf": System("sjf"),
    "edf": System("edf"),
    "econo": System("econo"),
    "sjf_known": System("sjf", 0.0),
    "sjf_by_quantiles": System("sjf", None),
    "edf_by_quantiles": System("edf", None),
}


@dataclass
class Setting:
    """One GPU; ``times``: of a mean prompt, and of a decode among so many that KV is full to `FULL_KV`."""

    blocks: int = int(KV_BYTES / MODEL.kv_bytes_per_token) // BLOCK_TOKENS
    profile: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._roofline = roofline(MODEL, MACHINE)
        self.profile = profiled(self.cost, 64).state()

    def cost(self, load: StepLoad) -> float:
        return self._roofline(load) + SEQUENCE_S * load.seqs

    @cached_property
    def times(self) -> SloTimes:
        draw = random.Random(0)
        pairs = [LENGTHS.draw(draw) for _ in range(4000)]
        prompt, output = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
        context = FULL_KV * self.blocks * BLOCK_TOKENS
        seqs = round(context / (prompt + output / 2))
        return SloTimes(self.cost(StepLoad.prefill(round(prompt))), self.cost(StepLoad(0, 0.0, seqs, round(context), seqs)))

    def trace(self, rate: float, seconds: float, seed: int, sigma: float | None) -> list[Request]:
        """The same requests for every system; the SLO's two parts are each request's promise, so that a deadline is the SLO's."""
        draw = random.Random(seed + 1)
        requests = gamma(rate, 1.0, seconds, LENGTHS, random.Random(seed))
        told = [None if sigma is None else _told(request.output_tokens, sigma, draw) for request in requests]
        known = [replace(one, max_tokens=MAX_TOKENS, expected_tokens=tokens) for one, tokens in zip(requests, told, strict=True)]
        return promised(known, SLO_SCALE * self.times.prompt_s, SLO_SCALE * self.times.token_s)


def _told(tokens: int, sigma: float, draw: random.Random) -> int:
    if sigma == 0.0:
        return tokens
    return max(1, round(min(MAX_TOKENS, tokens * math.exp(draw.gauss(0.0, sigma))) * PADDING))


def simulate(system: System, setting: Setting, rate: float, seconds: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Runs to the end of every request that arrives within ``seconds``, one for each of ``seeds``."""
    ended, ran_s = list[Outcome](), 0.0
    for seed in seeds:
        config = PartsConfig(online_order=system.order, budget="fixed", reserve="fixed")
        brain = Brain(parts_of(config, LatencyModel.from_state(setting.profile)), PolicyConfig(0, 0.0, 1))
        simulation = Simulation(SimEngine(setting.cost, setting.blocks, SLOTS, STEP_TOKENS, BLOCK_TOKENS), brain)
        ended += simulation.run(setting.trace(rate, seconds, seed, system.sigma))
        ran_s += simulation.now_s
    tokens = sum(one.request.prompt_tokens + one.request.output_tokens for one in ended)
    return figures([_served(one) for one in ended], setting.times) | {
        "requests_per_s": round(len(ended) / ran_s, 3),
        "preemptions": sum(one.preemptions for one in ended),
        "recomputed_share": round(sum(one.recomputed for one in ended) / tokens, 3),
    }


def _served(one: Outcome) -> Served:
    return Served(one.request.prompt_tokens, one.request.output_tokens, one.ttft_s, one.latency_s)


def swept(system: System, setting: Setting, seconds: float, seeds: Sequence[int]) -> dict[str, Any]:
    """At rising rates, until the mean passes `BOUND_S`, and at `SSR_RATE`."""
    points: list[dict[str, Any]] = []

    def mean_s(rate: float) -> float:
        points.append({"rate": rate, **simulate(system, setting, rate, seconds, seeds)})
        return float(points[-1]["normalized_s"]["mean"])

    rate = highest_rate(mean_s, BOUND_S, RATES)
    reached = points[-1]["normalized_s"]["mean"] > BOUND_S
    if points[-1]["rate"] < SSR_RATE:
        mean_s(SSR_RATE)
    return {"order": system.order, "sigma": system.sigma, "rate_at_bound": rate, "bound_reached": reached, "points": points}


def run(options: Options) -> dict[str, Any]:
    """Rates over that of first come, first served at one mean latency, and the SSR at one rate. ``seconds``: of arrivals, virtual."""
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    seeds = range(options.seed, options.seed + (QUICK_SEEDS if options.quick else SEEDS))
    setting, systems = Setting(), dict[str, dict[str, Any]]()
    for name, system in SYSTEMS.items():
        systems[name] = swept(system, setting, seconds, seeds)
        print(f"{name}: {systems[name]['rate_at_bound']} requests/s at {BOUND_S} s a token", file=sys.stderr, flush=True)
    base = systems["fcfs"]["rate_at_bound"]
    rates = {name: round(found["rate_at_bound"] / base, 3) for name, found in systems.items() if base and found["rate_at_bound"]}
    ssr = {name: point["ssr"] for name, found in systems.items() for point in found["points"] if point["rate"] == SSR_RATE}
    return {
        "model": f"{MODEL.name} on {MACHINE.gpus} x {MACHINE.gpu.name}, simulated",
        "setting": {
            "kv_blocks": setting.blocks,
            "block_tokens": BLOCK_TOKENS,
            "max_seqs": SLOTS,
            "arrival_seconds": seconds,
            "runs": len(seeds),
        },
        "slo_times": {"prompt_s": round(setting.times.prompt_s, 5), "token_s": round(setting.times.token_s, 5)},
        "bound_s_per_token": BOUND_S,
        "rate_over_fcfs_at_bound": rates,
        f"ssr_at_{SSR_RATE:g}_per_s": ssr,
        "lengths_by_prompts": predictors(read_lengths(), options.seed),
        "systems": systems,
    }
