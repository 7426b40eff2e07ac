"""Chat and rows on a machine with CUDA graphs: what a latency model that knows the stairs gains over one that learns them."""

from __future__ import annotations

import random

from harvester.policy.model.latency import LatencyModel
from harvester.policy.parts import PartsConfig
from harvester.policy.view import PolicyConfig
from harvester.sim.cost import MODELS, kv_blocks
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import SHAREGPT, Drawn, LogNormal, gamma, offline_job, promised
from tests.policy.stairs import DEFAULT, H200, NOISE, Knower, truth
from tests.sim.brains import a_brain

WARM_UP_S, SECONDS, TPOT_S = 5.0, 8.0, 0.009


def served(model: LatencyModel) -> tuple[float, int]:
    """After the warm-up: share of chat's gaps between tokens above the objective, and tokens of the rows that ended."""
    rng, noise, cost = random.Random(7), random.Random(8), truth()
    chat = promised(gamma(8.0, 2.0, WARM_UP_S + SECONDS, SHAREGPT, rng), 1.0, TPOT_S)
    rows = offline_job("sum", 2000, Drawn(LogNormal(300, 0.7, 16, 3000), LogNormal(100, 0.5, 8, 400)), rng)
    blocks = kv_blocks(MODELS["llama-3.1-8b"], H200)
    engine = SimEngine(lambda load: cost(load) * noise.lognormvariate(0.0, NOISE), blocks, max_seqs=256, max_tokens=2048)
    simulation = Simulation(engine, a_brain(PartsConfig(), PolicyConfig(16, 0.05, 256), model))
    simulation.run([*chat, *rows], until_s=WARM_UP_S)
    ended = simulation.run(until_s=WARM_UP_S + SECONDS)
    gaps = [gap for outcome in ended if not outcome.request.offline for gap in outcome.gaps_s]
    tokens = sum(outcome.request.prompt_tokens + outcome.request.output_tokens for outcome in ended if outcome.request.offline)
    return sum(gap > TPOT_S for gap in gaps) / len(gaps), tokens


def test_a_model_that_learns_the_stairs_keeps_the_objective_and_harvests_what_one_that_knows_them_does() -> None:
    late, tokens = served(LatencyModel(DEFAULT))
    _, best = served(Knower(truth()))
    assert late <= 0.01
    assert tokens >= 0.97 * best
