"""Requests as the plan of a step sees them, and what a plan of them computes."""

from __future__ import annotations

from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.step.batch import batch_of
from harvester.policy.step.plan import Plan, PolicyConfig, Running, View
from harvester.policy.step.slo import online_work
from tests.policy.machine import CPU, a_model

LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64)
MODEL = a_model(CPU, 0.05)


def chat(tpot_s: float = 0.1, context: int = 100, rank: int = 0) -> Running:
    return Running(False, 1, 2, 0, 0, context=context, decoding=True, tpot_s=tpot_s, rank=rank)


def prompt(tokens: int = 100, due_s: float = 1.0, context: int = 0) -> Running:
    return Running(False, tokens, 2, 0, 0, context=context, due_s=due_s)


def row(step_tokens: int = 1, context: int = 100) -> Running:
    return Running(True, step_tokens, 10, 10, 0, context=context, decoding=step_tokens == 1)


def view(*running: Running, **fields: object) -> View:
    given: dict[str, object] = {"free_blocks": 5000, "total_blocks": 10_000, "max_seqs": 512, "max_tokens": 2048, **fields}
    return View(running, **{"online_waiting": 0, "online_waiting_blocks": 0, "offline_next_blocks": 0, **given})  # type: ignore[arg-type]


def planned_load(seen: View, plan: Plan, model: LatencyModel = MODEL) -> StepLoad:
    """What the engine would compute: offline chunks in order until the tokens are spent."""
    load, left = online_work(seen, batch_of(seen.running), LIMITS, model).load, plan.offline_tokens or 0
    for i in plan.run:
        request = seen.running[i]
        if request.offline and left > 0:
            tokens = min(request.step_tokens, left)
            left -= tokens
            load += StepLoad.decode(request.context) if tokens == 1 else StepLoad.prefill(tokens, request.context)
    return load
