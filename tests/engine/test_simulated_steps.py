"""The simulator against vLLM's scheduler with the same brain: the same requests get the same tokens in the same steps.

No model runs. The clock of both is virtual, and a step takes as long as its load says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.engine.shared.settings import KEY, Settings
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.parts import parts_of
from harvester.sim.engine import SimEngine
from harvester.sim.loop import EMPTY_STEP_S, Simulation
from harvester.sim.trace import Request, promised
from tests.sim.recorder import Steps, recorded_steps

pytestmark = pytest.mark.engine

BLOCK, SLOTS, STEP_TOKENS = 16, 6, 2048
MAX_STEPS = 2000
TTFT_S, TPOT_S = 0.4, 0.04


@dataclass(frozen=True)
class Load:
    """``chat`` and ``rows``: how many of each. ``allowed``: a row's `max_tokens` over the tokens of its answer."""

    blocks: int
    chat: int
    rows: int
    online_order: str = "fcfs"
    budget: str = "fixed"
    admission: str = "worst"
    allowed: int = 1

    @property
    def sections(self) -> dict[str, Any]:
        schedule = {"budget": self.budget, "reserve": "fixed", "safepoints": "off", "online_order": self.online_order}
        schedule["admission"] = self.admission
        share = {"reserved_slots": 2, "reserved_kv": 0.1, "offline_step_tokens": 64}
        return {"share": share, "schedule": schedule, "slo": {"ttft_slo_ms": 1000 * TTFT_S, "tpot_slo_ms": 1000 * TPOT_S}}


LOADS = {
    "room for all": Load(400, 12, 20),
    "little KV": Load(40, 12, 20),
    "little KV, shortest prompt first": Load(40, 20, 10, "fixed"),
    "chat alone, more than slots": Load(60, 30, 0, "fixed"),
    "chat alone, more than slots, by feedback": Load(60, 30, 0, "mlfq"),
    "chat alone, KV for few, shortest answer left first": Load(40, 30, 0, "sjf"),
    "chat alone, KV for few, earliest answer due first": Load(40, 30, 0, "edf"),
    "chat alone, KV for few, EconoServe's order": Load(40, 30, 0, "econo"),
    "rows alone": Load(40, 0, 30),
    "rows alone, by what they are expected to hold": Load(24, 0, 80, admission="expected", allowed=6),
    "rows of which the longest are all that is allowed": Load(24, 0, 60, admission="expected"),
    "little KV, by what rows are expected to hold": Load(40, 12, 60, "mlfq", "slo", "expected", 6),
    "a budget by the model": Load(400, 16, 40, "edf", "slo"),
    "a budget by the model, little KV, by feedback": Load(30, 24, 20, "mlfq", "slo"),
}


def cost(load: StepLoad) -> float:
    return 0.004 + 0.0002 * load.tokens + 0.0001 * load.seqs


def trace_of(load: Load, seed: int) -> list[Request]:
    draw = random.Random(seed)
    chat = [Request(f"c{i}", draw.uniform(0.0, 1.5), draw.randint(1, 150), draw.randint(1, 60)) for i in range(load.chat)]
    drawn = [(draw.randint(1, 150), draw.randint(1, 60)) for _ in range(load.rows)]
    rows = [Request(f"r{i}", 0.0, prompt, answer, "job", load.allowed * answer) for i, (prompt, answer) in enumerate(drawn)]
    return sorted([*rows, *chat], key=lambda request: request.arrival_s)


def simulated(load: Load, trace: list[Request], monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = recorded_steps(monkeypatch)
    settings = Settings.parse({KEY: load.sections})
    brain = Brain(parts_of(settings.parts(load.blocks), LatencyModel()), settings.policy)
    engine = SimEngine(cost, load.blocks, SLOTS, STEP_TOKENS, BLOCK)
    ended = Simulation(engine, brain).run(promised(trace, TTFT_S, TPOT_S))
    assert len(ended) == len(trace)
    return [step for step in steps if step]


def driven(load: Load, trace: list[Request], model: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """vLLM keeps one KV block for itself. Each request computes its prompt itself, also one that lost its KV and might find it cached."""
    from bench.harness.engine.drive import Drive
    from harvester.engine.core import ahead
    from harvester.engine.vllm.core import scheduler

    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    for module in (scheduler, ahead):
        monkeypatch.setattr(module, "time", clock)
    drive = Drive(model, scheduler.HarvestScheduler, load.blocks + 1, SLOTS, BLOCK, load.sections)
    steps, left = list[dict[str, int]](), list(trace)
    for _ in range(MAX_STEPS):
        while left and left[0].arrival_s <= now[0]:
            _enter(drive, left.pop(0))
        output = drive.schedule()
        drive.sent(output)
        steps.append(dict(output.num_scheduled_tokens))
        now[0] += cost(list(drive.scheduler._steps)[-1].load) if steps[-1] else EMPTY_STEP_S
        if not drive.scheduler.requests and left:
            now[0] = max(now[0], left[0].arrival_s)
        drive.update(output)
        if len(drive.finished) == len(trace):
            return [step for step in steps if step]
    raise AssertionError(f"{len(drive.finished)} of {len(trace)} have ended after {MAX_STEPS} steps")


def _enter(drive: Any, request: Request) -> None:
    at_s = request.arrival_s + 1e-9 * len(drive.requests)
    lengths = request.prompt_tokens, request.allowed_tokens
    made = drive.made(request.id, *lengths, offline=request.offline, arrived_s=at_s, answer_tokens=request.output_tokens)
    made.skip_reading_prefix_cache = True
    drive.enter(made)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LOADS)
def test_the_simulator_gives_each_request_the_tokens_that_the_engine_gives_it(
    name: str, seed: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LOADS[name]
    trace = trace_of(load, seed)
    expected, found = driven(load, trace, model, monkeypatch), simulated(load, trace, monkeypatch)
    differ = next((step for step, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other), None)
    assert differ is None, f"step {differ}: {expected[differ]} in the engine, {found[differ]} simulated"
    assert len(expected) == len(found)
