"""Skip-join MLFQ against its peers, simulated: the request rate that each sustains at one mean normalized latency.

FastServe's setting (section 6 of arXiv 2305.05920v3): OPT-13B on one A100 40 GB, ShareGPT-like lengths, Poisson arrivals, latency over
output tokens with 0.3 s a token as the bound. No GPU is used: steps are timed by a roofline of that model and GPU. And the load of the
scenario ``mlfq``, with steps as long as a small model's on two cores. ``shortest_remaining`` knows every length, as no scheduler does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.harness.load.arrivals import read_lengths, scaled
from bench.harness.options import Options
from harvester.policy.model.latency import StepLoad
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.step.plan import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Cost, Machine, block_copy_s, kv_blocks, roofline
from harvester.sim.engine import Brain, Engine
from harvester.sim.loop import Simulation
from harvester.sim.measure import Summary, highest_rate, summarize
from harvester.sim.order import Batches, Fcfs, Feedback, Order, ShortestPrompt, ShortestRemaining
from harvester.sim.trace import SHAREGPT, Lengths, Request, gamma, stretched

MODEL = MODELS["opt-13b"]
MACHINE = Machine(GPUS["a100-40gb"])
LEVELS = 12
STARVATION_S = 0.3
SECONDS, QUICK_SECONDS = 300.0, 60.0
RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0)
CHATS = (0.15, (2048, 256))  # the scenario `mlfq`'s share of the recorded lengths, and the longest prompt and answer
PROMPT_FACTORS, FACTOR_RATE = (0.25, 1.0, 4.0), 1.25
Evicted = Literal["recompute", "swap", "overlap"]


@dataclass(frozen=True, slots=True)
class Setting:
    """``bound_s``: of the mean latency, a token."""

    cost: Cost
    kv_blocks: int
    block_copy_s: float
    max_seqs: int
    max_tokens: int
    lengths: Lengths
    bound_s: float

    def mlfq(self, levels: int = LEVELS, growth: float = 2.0) -> Mlfq:
        return Mlfq(levels, self.cost(StepLoad.decode(1)), STARVATION_S, growth)

    def prefill_s(self, tokens: int) -> float:
        return self.cost(StepLoad.prefill(tokens))

    def remaining(self, trace: Sequence[Request]) -> Order:
        each_s = self.cost(StepLoad(decode_seqs=self.max_seqs, seqs=self.max_seqs)) / self.max_seqs
        service_s = {request.id: self.prefill_s(request.prompt_tokens) + each_s * request.output_tokens for request in trace}
        return ShortestRemaining(service_s, self.max_seqs)


class Recorded:
    """Lengths drawn from recorded ones."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._pairs = pairs

    def draw(self, rng: random.Random) -> tuple[int, int]:
        return rng.choice(self._pairs)


def two_cores_s(load: StepLoad) -> float:
    """Seconds of a step of the benches' Llama of 28M parameters, roughly as the latency model learns them on two cores."""
    return 6e-3 + 1.5e-4 * load.prefill_tokens + 8e-4 * load.decode_seqs + 1.5e-6 * load.decode_context


def _paper(max_seqs: int) -> Setting:
    return Setting(roofline(MODEL, MACHINE), kv_blocks(MODEL, MACHINE), block_copy_s(MODEL, MACHINE), max_seqs, 2048, SHAREGPT, 0.3)


# Most sequences of a step. 8: the batch that the EconoServe paper gives FastServe for OPT-13B; 256: vLLM's default, where KV is the bound.
SETTINGS: dict[str, Callable[[], Setting]] = {
    "batch_8": lambda: _paper(8),
    "batch_256": lambda: _paper(256),
    "two_cores": lambda: Setting(two_cores_s, 6000, 5e-5, 4, 1024, Recorded([scaled(length, *CHATS) for length in read_lengths()]), 0.06),
}


@dataclass(frozen=True, slots=True)
class System:
    """``evicted``: see `Engine`."""

    order: Callable[[Setting, Sequence[Request]], Order]
    evicted: Evicted = "overlap"


SYSTEMS = {
    "run_to_completion": System(lambda it, trace: Batches(it.max_seqs), "recompute"),
    "fcfs": System(lambda it, trace: Fcfs(), "recompute"),
    "fixed_priority": System(lambda it, trace: ShortestPrompt()),
    "naive_mlfq": System(lambda it, trace: Feedback(it.mlfq(), None)),
    "skip_join_mlfq": System(lambda it, trace: Feedback(it.mlfq(), it.prefill_s)),
    "skip_join_mlfq_6_levels": System(lambda it, trace: Feedback(it.mlfq(6), it.prefill_s)),
    "skip_join_mlfq_flat_starvation": System(lambda it, trace: Feedback(it.mlfq(growth=1.0), it.prefill_s)),
    "skip_join_mlfq_recompute": System(lambda it, trace: Feedback(it.mlfq(), it.prefill_s), "recompute"),
    "skip_join_mlfq_reactive": System(lambda it, trace: Feedback(it.mlfq(), it.prefill_s), "swap"),
    "shortest_remaining": System(lambda it, trace: it.remaining(trace)),
}


def simulate(system: System, setting: Setting, rate: float, seconds: float, seed: int, prompt_factor: float = 1.0) -> Summary:
    """One run to the end of every request that arrives within ``seconds``."""
    trace = stretched(gamma(rate, 1.0, seconds, setting.lengths, random.Random(seed)), prompt_factor)
    engine = Engine(
        setting.cost,
        setting.kv_blocks,
        setting.max_seqs,
        setting.max_tokens,
        evicted=system.evicted,
        block_copy_s=setting.block_copy_s,
    )
    return summarize(Simulation(engine, Brain(PolicyConfig(0, 0.0, 1), system.order(setting, trace))).run(trace))


def run(options: Options) -> dict[str, Any]:
    """``seconds`` is how long requests arrive, by the virtual clock."""
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    settings = {name: _setting(made(), seconds, options) for name, made in SETTINGS.items()}
    ratios: dict[str, float | None] = {}
    for name, setting in settings.items():
        rates = {system: found["rate_at_bound"] for system, found in setting["systems"].items()}
        best = rates["skip_join_mlfq"]
        for other in ("fcfs", "skip_join_mlfq_recompute", "skip_join_mlfq_reactive"):
            ratios[f"{name}_latency_of_{other}_over_skip_join_mlfq"] = _latency_ratio(setting["systems"], other)
        for system, rate in rates.items():
            if system != "skip_join_mlfq":
                ratios[f"{name}_rate_over_{system}"] = round(best / rate, 2) if best and rate else None
    return {
        "model": f"{MODEL.name} on {MACHINE.gpus} x {MACHINE.gpu.name}, simulated",
        "setting": {
            "lengths": asdict(SHAREGPT),
            "arrivals": "Poisson",
            "arrival_seconds": seconds,
            "levels": LEVELS,
            "starvation_s": STARVATION_S,
            "machine": asdict(MACHINE),
        },
        "systems": settings["batch_256"]["systems"],
        "settings": settings,
        "prompt_factors": _factors(seconds, options),
        "ratios": ratios,
        "goals": {"rate_over_fcfs": {"goal": 6.0, **_met(ratios)}},
    }


def _latency_ratio(systems: dict[str, Any], other: str) -> float:
    """Of mean normalized latency at one rate, the largest among the rates that both ran."""
    theirs, ours = ({point["rate"]: point["normalized_mean_s"] for point in systems[name]["points"]} for name in (other, "skip_join_mlfq"))
    return round(max(float(theirs[rate] / ours[rate]) for rate in theirs.keys() & ours.keys()), 2)


def _met(ratios: dict[str, float | None]) -> dict[str, Any]:
    measured = {name: ratios[f"{name}_rate_over_fcfs"] for name in ("batch_8", "batch_256")}
    return {"measured": measured, "met": any((ratio or 0.0) >= 6.0 for ratio in measured.values())}


def _setting(setting: Setting, seconds: float, options: Options) -> dict[str, Any]:
    systems: dict[str, Any] = {}
    for name, system in SYSTEMS.items():
        points: list[dict[str, Any]] = []

        def mean_s(rate: float, system: System = system, points: list[dict[str, Any]] = points) -> float:
            summary = simulate(system, setting, rate, seconds, options.seed)
            points.append({"rate": rate, **asdict(summary)})
            return summary.normalized_mean_s

        found = highest_rate(mean_s, setting.bound_s, RATES)
        reached = bool(points) and points[-1]["normalized_mean_s"] > setting.bound_s
        systems[name] = {"rate_at_bound": found, "bound_reached": reached, "points": points}
    return {
        "max_seqs": setting.max_seqs,
        "max_tokens": setting.max_tokens,
        "kv_blocks": setting.kv_blocks,
        "quantum_s": setting.cost(StepLoad.decode(1)),
        "bound_s_per_token": setting.bound_s,
        "systems": systems,
    }


def _factors(seconds: float, options: Options) -> dict[str, Any]:
    """Mean normalized latency with prompts so many times as long (FastServe, figure 14), at a rate that FCFS cannot hold."""
    setting = SETTINGS["batch_8"]()
    return {
        f"{factor:g}": {
            name: simulate(system, setting, FACTOR_RATE, seconds, options.seed, factor).normalized_mean_s
            for name, system in SYSTEMS.items()
        }
        for factor in PROMPT_FACTORS
    }
