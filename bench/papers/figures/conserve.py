"""ConServe's figures 5 to 8: Llama-2-7B on an A100 of 40 GB, chat beside rows that are summarized, by the brain that the engine holds.

The SLO is the P99 of chat alone in the same load, as in the paper. Offline tokens are prompt and answer, without what is computed again.
The paper calls them generated tokens. 5,868 of those a second (its section 6.3.1) are five times what the memory of the GPU can read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.load.arrivals import Arrival, phased, read_trace, replay, synthetic
from bench.papers.figures.scale import Scale
from bench.papers.systems.conserve import STEPS, SYSTEMS, CoServing
from harvester.policy.kv.checkpoint import CUDA_COST
from harvester.sim.cost import GPUS, MODELS, Machine, block_copy_s, kv_blocks, roofline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.measure import percentile
from harvester.sim.trace import Drawn, LogNormal, offline_job, promised
from harvester.sim.trace import Request as SimRequest

MODEL, MACHINE = MODELS["llama-2-7b"], Machine(GPUS["a100-40gb"])
CHAT = (1024, 128)  # tokens (6.3)
ROWS = Drawn(LogNormal(2400.0, 0.4, 256, 3500), LogNormal(200.0, 0.8, 16, 512))  # LongBench, cut to Llama 2's context
MAX_ANSWER, MOST = 512, (3072, 512)
RATE, SECONDS, WARM_S = 2.0, 120.0, 20.0
HOST_BYTES = 100e9
CVS, RATES = (1.0, 2.0, 4.0), (1.0, 2.0, 3.0)
PHASE_S = 60.0
Load = Sequence[Arrival]


def engine(ends: bool) -> SimEngine:
    blocks = kv_blocks(MODEL, MACHINE)
    host = int(HOST_BYTES / (MODEL.kv_bytes_per_token * 16))
    copy_s = block_copy_s(MODEL, MACHINE)
    layers = MODEL.layers if ends else 0
    return SimEngine(roofline(MODEL, MACHINE), blocks, host_blocks=host, block_copy_s=copy_s, copy_cost=CUDA_COST, layers=layers)


def run(system: CoServing, load: Load, seconds: float, slo_s: tuple[float, float]) -> dict[str, float]:
    """Figures of ``load``, which begins after `WARM_S` of batch work alone."""
    made = replace(engine(system.ends), latest_gives_way=not system.slo)
    simulation = Simulation(made, system.brain(slo_s, made.total_blocks))
    chat = [SimRequest(f"chat{i}", WARM_S + one.at_s, one.prompt_tokens, one.output_tokens) for i, one in enumerate(load)]
    rows = offline_job("job", round(4 * (WARM_S + seconds)), ROWS, random.Random(2)) if system.rows else []
    rows = [SimRequest(one.id, 0.0, one.prompt_tokens, one.output_tokens, "job", MAX_ANSWER) for one in rows]
    begin_s, end_s = WARM_S, WARM_S + seconds
    outcomes = [*simulation.run(promised([*chat, *rows], *slo_s), until_s=end_s), *simulation.going]
    answered = [one for one in outcomes if one.token_s and not one.request.offline]
    ttft_s = [one.ttft_s for one in answered]
    gaps_s = [gap_s for one in answered for gap_s in one.gaps_s]
    tokens = {kind: sum(one.tokens_between(begin_s, end_s) for one in outcomes if one.request.offline == kind) for kind in (False, True)}
    return {
        "ttft_p99_ms": round(1000 * percentile(ttft_s, 0.99), 1),
        "tpot_p99_ms": round(1000 * percentile(gaps_s, 0.99), 1),
        "online_tokens_per_s": round(tokens[False] / seconds, 1),
        "offline_tokens_per_s": round(tokens[True] / seconds, 1),
        "unanswered": sum(1 for one in outcomes if not one.token_s and not one.request.offline and one.request.arrival_s < end_s - 5.0),
        "preemptions": sum(one.preemptions for one in outcomes),
        "recomputed_tokens": sum(one.recomputed for one in outcomes),
    }


def compared(load: Load, seconds: float, systems: dict[str, CoServing]) -> dict[str, Any]:
    """Each of ``systems`` beside chat alone, which sets the SLO."""
    alone = run(SYSTEMS["online_only"], load, seconds, (1.0, 1.0))
    slo_s = alone["ttft_p99_ms"] / 1000, alone["tpot_p99_ms"] / 1000
    return {"online_only": alone, **{name: run(system, load, seconds, slo_s) for name, system in systems.items() if system.rows}}


def trace(scale: Scale) -> dict[str, Any]:
    """Figure 5: a recorded trace. BurstGPT is not at hand: arrivals and lengths are those of Azure's conversations of 2023."""
    seconds = scale.seconds(SECONDS)
    load = replay(read_trace(), RATE, seconds, 1.0, MOST, np.random.default_rng(1))
    found = compared(load, seconds, SYSTEMS)
    total = {name: one["online_tokens_per_s"] + one["offline_tokens_per_s"] for name, one in found.items()}
    return {"systems": found, "total_over_online_only": {name: round(value / total["online_only"], 2) for name, value in total.items()}}


def phases(scale: Scale) -> dict[str, Any]:
    """Figure 6: chat on, off and on again."""
    each_s = scale.seconds(PHASE_S)
    load = phased([(each_s, RATE), (each_s, 0.0), (each_s, RATE)], 1.0, CHAT, np.random.default_rng(1))
    return {"phase_s": each_s, "systems": compared(load, 3 * each_s, SYSTEMS)}


def bursts(cv: float, rate: float, scale: Scale) -> dict[str, Any]:
    """Figure 7: one burstiness, one rate."""
    seconds = scale.seconds(SECONDS)
    return {"cv": cv, "rate": rate, "systems": compared(synthetic(rate, cv, seconds, CHAT, np.random.default_rng(1)), seconds, SYSTEMS)}


def parts(scale: Scale) -> dict[str, Any]:
    """Figure 8: what is added to vLLM++, one after the other."""
    seconds = scale.seconds(SECONDS)
    return {"systems": compared(synthetic(RATE, 1.0, seconds, CHAT, np.random.default_rng(1)), seconds, STEPS)}
