"""The compiled loop of the papers' systems decides as the brain does, step by step, wherever a system is made of the brain's parts."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers.engine import columns
from bench.papers.engine.run import played
from bench.papers.loads import DATASETS
from bench.papers.machines import BLOCK_TOKENS, PAPER, SEQUENCE_S, rules_of
from bench.papers.systems import SYSTEMS
from bench.papers.systems.system import System
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request
from tests.sim.recorder import Steps, recorded_steps

SETTING, DATASET = PAPER["opt-13b"], DATASETS["sharegpt"]
BLOCKS, COUNT, LONGEST, MAX_STEPS = 40, 60, 400, 5000
SHARED = {name: system for name, system in SYSTEMS.items() if isinstance(system, System) and system.parts is not None}


def load_of(seed: int, knows: bool) -> columns.Requests:
    """Requests that all arrive within two seconds; a dozen fit at once."""
    generator = np.random.default_rng(seed)
    requests = columns.requests(COUNT)
    found = np.asarray(requests).view(np.recarray)
    found.arrival_s = np.sort(generator.random(COUNT)) * 2.0
    found.prompt, found.output = generator.integers(1, 200, COUNT), generator.integers(1, 120, COUNT)
    error = np.exp(0.25 * generator.standard_normal(COUNT))
    found.predicted = found.output if knows else np.maximum(1, np.rint(found.output * error))
    return requests


def compiled(system: System, requests: columns.Requests) -> Steps:
    log = np.zeros((MAX_STEPS, COUNT), np.int32)
    given = {**rules_of(SETTING), **system.rules(SETTING, DATASET), "total_blocks": BLOCKS}
    if "max_output" in given:
        given["max_output"] = LONGEST
    played(requests, given, log=log)
    return [{f"r{i}": int(tokens) for i, tokens in enumerate(step) if tokens} for step in log if step.any()]


def planned(system: System, requests: columns.Requests, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The brain's steps; it holds every request as an offline row."""
    steps = recorded_steps(monkeypatch)
    rules = rules_of(SETTING, **system.rules(SETTING, DATASET))

    def cost(load: StepLoad) -> float:
        return SETTING.cost(load) + SEQUENCE_S * load.seqs

    longest = LONGEST if "max_output" in rules else None
    trace = [
        Request(f"r{i}", one.arrival_s, int(one.prompt), int(one.output), f"r{i}", longest or int(one.predicted))
        for i, one in enumerate(requests)
    ]
    assert system.parts is not None
    parts = parts_of(PartsConfig(budget="fixed", reserve="fixed"), LatencyModel())
    predicted = {f"r{i}": int(one.predicted) for i, one in enumerate(requests)}
    parts.offline, parts.admission = system.parts.order(predicted), system.parts.admission(predicted)
    engine = SimEngine(cost, BLOCKS, int(rules["max_seqs"]), int(rules["step_tokens"]), BLOCK_TOKENS)
    ended = Simulation(engine, Brain(parts, PolicyConfig(0, 0.0, 1))).run(trace)
    assert len(ended) == COUNT
    return [step for step in steps if step]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SHARED)
def test_each_request_gets_the_tokens_that_the_brain_gives_it(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    system = SHARED[name]
    found = compiled(system, load_of(seed, system.knows))
    expected = planned(system, load_of(seed, system.knows), monkeypatch)
    differ = next((step for step, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other), None)
    assert differ is None, f"step {differ}: {expected[differ]} by the brain, {found[differ]} compiled"
    assert len(expected) == len(found)


@pytest.mark.parametrize("seed", range(4))
def test_the_loads_run_short_of_kv(seed: int) -> None:
    requests = load_of(seed, knows=False)
    compiled(SHARED["vllm"], requests)
    assert sum(one.preemptions for one in requests) > 5
    assert sum(one.recomputed for one in requests) > 100
