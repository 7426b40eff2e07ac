"""Skip-join MLFQ against its peers, simulated: the request rate that each sustains at one mean normalized latency.

FastServe's setting (section 6 of arXiv 2305.05920v3): OPT-13B on one A100 40 GB, ShareGPT-like lengths, Poisson arrivals, latency over
output tokens with 0.3 s a token as the bound. No GPU is used: steps are timed by a roofline of that model and GPU. And the load of the
scenario ``mlfq``, with steps as long as a small model's on two cores. ``shortest_remaining`` knows every length, as no scheduler does.
The brain is the one that an engine holds, checkpoints and swapping included.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bench.harness.load.arrivals import read_lengths, scaled
from bench.harness.options import Options
from bench.scenarios.order.peer_orders import Batches, ShortestRemaining
from harvester.engine.shared.settings import UNPROMISED_TTFT_S
from harvester.model_config import CheckpointConfig
from harvester.policy.brain import Brain
from harvester.policy.kv.checkpoint import CPU_COST, CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.online import Fcfs, OnlineOrder, ShortestPrompt, SkipJoin
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Cost, Machine, block_copy_s, kv_blocks, roofline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.measure import Summary, highest_rate, summarize
from harvester.sim.trace import SHAREGPT, Lengths, Request, gamma, stretched
from harvester.sim.track import Outcome

MODEL = MODELS["opt-13b"]
MACHINE = Machine(GPUS["a100-40gb"])
LEVELS = 12
STARVATION_S = 0.3
SECONDS, QUICK_SECONDS = 300.0, 60.0
RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0)
CHATS = (0.15, (2048, 256))  # the scenario `mlfq`'s share of the recorded lengths, and the longest prompt and answer
PROMPT_FACTORS, FACTOR_RATE = (0.25, 1.0, 4.0), 1.25
HOST_TIMES = 4  # KV blocks of host memory for each on the GPU
Kv = Literal["recompute", "reactive", "ahead"]


@dataclass(frozen=True, slots=True)
class Setting:
    """``bound_s``: of the mean latency, a token. ``copy_cost``: slowdown of the concurrent step per second of copying."""

    cost: Cost
    kv_blocks: int
    block_copy_s: float
    max_seqs: int
    max_tokens: int
    lengths: Lengths
    bound_s: float
    copy_cost: float = CUDA_COST
    profile: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", profiled(self.cost, self.max_seqs).state())

    def mlfq(self, levels: int = LEVELS, growth: float = 2.0, skip: bool = True) -> OnlineOrder:
        return SkipJoin(Mlfq(levels, self.cost(StepLoad.decode(1)), STARVATION_S, growth), skip)

    def remaining(self, trace: Sequence[Request]) -> OnlineOrder:
        each_s = self.cost(StepLoad(decode_seqs=self.max_seqs, seqs=self.max_seqs)) / self.max_seqs
        service_s = {request.id: self.cost(StepLoad.prefill(request.prompt_tokens)) + each_s * request.output_tokens for request in trace}
        return ShortestRemaining(service_s, self.max_seqs)

    def kv_policy(self, kind: Kv) -> Checkpoints | None:
        """Copied ahead of need as harvester does, only when needed, or never: then nobody gives up KV for another's turn."""
        ttft_s, given = UNPROMISED_TTFT_S, CheckpointConfig()
        if kind == "recompute":
            return None
        if kind == "reactive":
            return Checkpoints(Thresholds(1e-9, 0.0), self.copy_cost, ttft_s, wait_blocks=self.kv_blocks)
        return Checkpoints(Thresholds(given.start_free, given.full_free), self.copy_cost, ttft_s)


def profiled(cost: Cost, max_seqs: int) -> LatencyModel:
    """What `harvester profile` would find."""
    model = LatencyModel()
    for _ in range(8):
        for tokens in (8, 32, 64, 128, 192, 256, 384, 512, 1024, 2048):
            for seqs in {0, 1, max_seqs // 2, max_seqs}:
                load = StepLoad.prefill(tokens) + StepLoad(0, 0.0, seqs, 300 * seqs, seqs)
                model.observe(load, cost(load))
        for seqs in {1, 2, max_seqs // 2, max_seqs}:
            load = StepLoad(0, 0.0, seqs, 300 * seqs, seqs)
            model.observe(load, cost(load))
    return model


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
    "two_cores": lambda: Setting(
        two_cores_s, 6000, 5e-5, 4, 1024, Recorded([scaled(length, *CHATS) for length in read_lengths()]), 0.06, CPU_COST
    ),
}


@dataclass(frozen=True, slots=True)
class System:
    """``kv``: see `Setting.kv_policy`."""

    order: Callable[[Setting, Sequence[Request]], OnlineOrder]
    kv: Kv = "ahead"


SYSTEMS = {
    "run_to_completion": System(lambda it, trace: Batches(it.max_seqs), "recompute"),
    "fcfs": System(lambda it, trace: Fcfs(), "recompute"),
    "fixed_priority": System(lambda it, trace: ShortestPrompt()),
    "naive_mlfq": System(lambda it, trace: it.mlfq(skip=False)),
    "skip_join_mlfq": System(lambda it, trace: it.mlfq()),
    "skip_join_mlfq_6_levels": System(lambda it, trace: it.mlfq(6)),
    "skip_join_mlfq_flat_starvation": System(lambda it, trace: it.mlfq(growth=1.0)),
    "skip_join_mlfq_recompute": System(lambda it, trace: it.mlfq(), "recompute"),
    "skip_join_mlfq_reactive": System(lambda it, trace: it.mlfq(), "reactive"),
    "shortest_remaining": System(lambda it, trace: it.remaining(trace)),
}


def simulate(system: System, setting: Setting, rate: float, seconds: float, seed: int, prompt_factor: float = 1.0) -> Summary:
    """One run to the end of every request that arrives within ``seconds``."""
    return summarize(played(system, setting, stretched(gamma(rate, 1.0, seconds, setting.lengths, random.Random(seed)), prompt_factor)))


def played(system: System, setting: Setting, trace: Sequence[Request]) -> list[Outcome]:
    """What became of each request."""
    engine = SimEngine(
        setting.cost,
        setting.kv_blocks,
        setting.max_seqs,
        setting.max_tokens,
        host_blocks=0 if system.kv == "recompute" else HOST_TIMES * setting.kv_blocks,
        block_copy_s=setting.block_copy_s,
        copy_cost=setting.copy_cost,
    )
    parts = parts_of(PartsConfig(), LatencyModel.from_state(setting.profile), setting.kv_policy(system.kv))
    parts.online = system.order(setting, trace)
    return Simulation(engine, Brain(parts, PolicyConfig(0, 0.0, 1))).run(trace)


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
