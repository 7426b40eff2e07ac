"""The door in simulated runs: what a front end refuses, and how long it has offline work stand still."""

from __future__ import annotations

import math

from harvester.policy.admission.chat import ChatAdmission
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.door import SimDoor
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request

SLO_S = 0.5


def cost(load: StepLoad) -> float:
    return 0.01 + 0.2e-3 * load.prefill_tokens + 0.5e-3 * load.decode_seqs


def played(with_door: bool, gap_s: float, slo_s: float = SLO_S) -> tuple[Simulation, SimDoor]:
    """A job for 2 s, then 40 chats beside it, one every ``gap_s``."""
    engine = SimEngine(cost, 2000, max_seqs=16, max_tokens=512)
    brain = Brain(parts_of(PartsConfig(), LatencyModel()), PolicyConfig(2, 0.1, 256, 60.0, 0.2, slo_s))
    door = SimDoor(engine, brain, ChatAdmission(64))
    simulation = Simulation(engine, brain, door if with_door else None)
    simulation.run([Request(f"row{n}", 0.0, 200, 64, "job") for n in range(300)], until_s=2.0)
    chats = [Request(f"chat{n}", 2.0 + gap_s * n, 300, 32, ttft_s=slo_s, tpot_s=0.2) for n in range(40)]
    simulation.run(chats, until_s=2.0 + 40 * gap_s)
    simulation.check()
    return simulation, door


def test_a_load_that_leaves_time_is_let_in_whole_and_nothing_stands_still() -> None:
    (free, _), (kept, door) = played(False, 0.5), played(True, 0.5)
    assert (door.refused, door.yield_until_s) == ([], -math.inf)
    assert (free.steps, free.offline_tokens) == (kept.steps, kept.offline_tokens)


def test_offline_work_stands_still_while_chat_would_wait_long() -> None:
    (free, _), (kept, door) = played(False, 0.11), played(True, 0.11)
    assert door.yield_until_s > 2.0
    assert not door.refused
    assert kept.offline_tokens < free.offline_tokens


def test_a_part_of_more_chat_than_fits_is_refused() -> None:
    _, door = played(True, 0.04, slo_s=1.2)  # kept by refusing: 17 times a prompt's own time
    assert 0 < len(door.refused) < 40
