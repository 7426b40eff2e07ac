"""Skip-join MLFQ against its peers, simulated: the request rate that each sustains at one mean normalized latency.

FastServe's setting (section 6 of arXiv 2305.05920v3): OPT-13B on one A100 40 GB, ShareGPT-like lengths, Poisson arrivals, latency over
output tokens with 0.3 s a token as the bound. No GPU is used: steps are timed by a roofline of that model and GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.scenario import Options
from harvester.policy.latency import StepLoad
from harvester.policy.mlfq import Mlfq
from harvester.policy.share import Limits
from harvester.sim.cost import GPUS, MODELS, Machine, block_copy_s, kv_blocks, roofline
from harvester.sim.engine import Brain, Engine
from harvester.sim.loop import Simulation
from harvester.sim.measure import Summary, highest_rate, summarize
from harvester.sim.order import Batches, Fcfs, Feedback, Order, ShortestPrompt
from harvester.sim.trace import SHAREGPT, gamma, stretched

MODEL = MODELS["opt-13b"]
MACHINE = Machine(GPUS["a100-40gb"])
COST = roofline(MODEL, MACHINE)
QUANTUM_S = COST(StepLoad.decode(1))
LEVELS = 12
STARVATION_S = 0.3
BOUND_S = 0.3  # a token, mean
SECONDS, QUICK_SECONDS = 300.0, 60.0
RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0)
PROMPT_FACTORS, FACTOR_RATE = (0.25, 1.0, 4.0), 1.25
Evicted = Literal["recompute", "swap", "overlap"]


@dataclass(frozen=True, slots=True)
class System:
    """``evicted``: see `Engine`."""

    order: Callable[[int], Order]  # by the most sequences of a step
    evicted: Evicted = "overlap"


def _mlfq() -> Mlfq:
    return Mlfq(LEVELS, QUANTUM_S, STARVATION_S)


def _prefill_s(tokens: int) -> float:
    return COST(StepLoad.prefill(tokens))


SYSTEMS = {
    "run_to_completion": System(Batches, "recompute"),
    "fcfs": System(lambda seqs: Fcfs(), "recompute"),
    "fixed_priority": System(lambda seqs: ShortestPrompt()),
    "naive_mlfq": System(lambda seqs: Feedback(_mlfq(), None)),
    "skip_join_mlfq": System(lambda seqs: Feedback(_mlfq(), _prefill_s)),
    "skip_join_mlfq_6_levels": System(lambda seqs: Feedback(Mlfq(6, QUANTUM_S, STARVATION_S), _prefill_s)),
    "skip_join_mlfq_flat_starvation": System(lambda seqs: Feedback(Mlfq(LEVELS, QUANTUM_S, STARVATION_S, 1.0), _prefill_s)),
    "skip_join_mlfq_recompute": System(lambda seqs: Feedback(_mlfq(), _prefill_s), "recompute"),
    "skip_join_mlfq_reactive": System(lambda seqs: Feedback(_mlfq(), _prefill_s), "swap"),
}
# Most sequences of a step. 8: the batch that the EconoServe paper gives FastServe for OPT-13B; 256: vLLM's default, where KV is the bound.
SETTINGS = {"batch_8": 8, "batch_256": 256}


def simulate(system: System, max_seqs: int, rate: float, seconds: float, seed: int, prompt_factor: float = 1.0) -> Summary:
    """One run to the end of every request that arrives within ``seconds``."""
    trace = stretched(gamma(rate, 1.0, seconds, SHAREGPT, random.Random(seed)), prompt_factor)
    engine = Engine(COST, kv_blocks(MODEL, MACHINE), max_seqs, evicted=system.evicted, block_copy_s=block_copy_s(MODEL, MACHINE))
    return summarize(Simulation(engine, Brain(Limits(0, 0.0, 1), system.order(max_seqs))).run(trace))


def run(options: Options) -> dict[str, Any]:
    """``seconds`` is how long requests arrive, by the virtual clock."""
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    settings = {name: _setting(seqs, seconds, options) for name, seqs in SETTINGS.items()}
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
            "bound_s_per_token": BOUND_S,
            "levels": LEVELS,
            "quantum_s": QUANTUM_S,
            "starvation_s": STARVATION_S,
            "kv_blocks": kv_blocks(MODEL, MACHINE),
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
    measured = {name: ratios[f"{name}_rate_over_fcfs"] for name in SETTINGS}
    return {"measured": measured, "met": any((ratio or 0.0) >= 6.0 for ratio in measured.values())}


def _setting(max_seqs: int, seconds: float, options: Options) -> dict[str, Any]:
    systems: dict[str, Any] = {}
    for name, system in SYSTEMS.items():
        points: list[dict[str, Any]] = []

        def mean_s(rate: float, system: System = system, points: list[dict[str, Any]] = points) -> float:
            summary = simulate(system, max_seqs, rate, seconds, options.seed)
            points.append({"rate": rate, **asdict(summary)})
            return summary.normalized_mean_s

        found = highest_rate(mean_s, BOUND_S, RATES)
        reached = bool(points) and points[-1]["normalized_mean_s"] > BOUND_S
        systems[name] = {"rate_at_bound": found, "bound_reached": reached, "points": points}
    return {"max_seqs": max_seqs, "systems": systems}


def _factors(seconds: float, options: Options) -> dict[str, Any]:
    """Mean normalized latency with prompts so many times as long (FastServe, figure 14), at a rate that FCFS cannot hold."""
    return {
        f"{factor:g}": {
            name: simulate(system, 8, FACTOR_RATE, seconds, options.seed, factor).normalized_mean_s for name, system in SYSTEMS.items()
        }
        for factor in PROMPT_FACTORS
    }
