"""Requests as the plan of a step sees them, and what a plan of them computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harvester.policy.admission.rule import Rows
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import batch_of
from harvester.policy.step.share import Budget, FixedShare, SloBudget
from harvester.policy.step.slo import online_work
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig, Running
from tests.policy.machine import CPU, a_model

LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64)
MODEL = a_model(CPU, 0.05)


def chat(tpot_s: float = 0.1, context: int = 100) -> Running:
    return Running("chat", False, 1, 2, 0, 0, context=context, decoding=True, tpot_s=tpot_s)


def drafting(drafts: int = 3, tpot_s: float = 0.1, context: int = 100) -> Running:
    """A chat that decodes with so many tokens of speculative decoding."""
    return chat(tpot_s, context)._replace(step_tokens=1 + drafts, drafts=drafts)


def prompt(tokens: int = 100, due_s: float = 1.0, context: int = 0) -> Running:
    return Running("chat", False, tokens, 2, 0, 0, context=context, due_s=due_s)


def row(step_tokens: int = 1, context: int = 100) -> Running:
    return Running("row", True, step_tokens, 10, 10, 0, context=context, decoding=step_tokens == 1)


def rows_of(waiting: Sequence[OfflineRow]) -> Rows:
    """``waiting`` as an admission reads them."""
    return lambda passed: (one for one in waiting if one.job not in passed)


def room_for(blocks: int) -> Callable[[int], int]:
    """Host memory for so many KV blocks."""
    return lambda most: min(blocks, most)


def view(*running: Running, **fields: object) -> StepView:
    given: dict[str, object] = {"free_blocks": 5000, "total_blocks": 10_000, "max_seqs": 512, "max_tokens": 2048, **fields}
    return StepView(running, **{"online_waiting": 0, "online_waiting_blocks": 0, "offline_next_blocks": 0, **given})  # type: ignore[arg-type]


def slo(model: LatencyModel | None) -> Budget:
    """The budget that plans with ``model``; None: the fixed share."""
    return FixedShare() if model is None else SloBudget(model)


def planned_load(seen: StepView, plan: StepPlan, model: LatencyModel = MODEL) -> StepLoad:
    """What the engine would compute: offline chunks in order until the tokens are spent."""
    load, left = online_work(seen, batch_of(seen.running), LIMITS, model).load, plan.offline_tokens or 0
    for i in plan.run:
        request = seen.running[i]
        if request.offline and left > 0:
            tokens = min(request.step_tokens, left)
            left -= tokens
            load += StepLoad.decode(request.context) if tokens == 1 else StepLoad.prefill(tokens, request.context)
    return load
