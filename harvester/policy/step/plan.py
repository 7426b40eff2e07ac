"""The plan of a step: what offline work may take of it, so that chat goes first.

Reserve first: offline work is admitted only into what is left beside a reserve for arrivals.
Preempt second: an offline request loses its KV only where an online arrival would otherwise find no slot or no KV.
Tokens last: a `Budget` says how many offline tokens run beside online work. Alone, offline work has no bound.
"""

from __future__ import annotations

from dataclasses import replace

from harvester.policy.admission.rule import Admission, WorstCase
from harvester.policy.kv.victims import victims
from harvester.policy.step.batch import Batch, batch_of
from harvester.policy.step.share import Budget, FixedShare
from harvester.policy.step.slo import limit_s
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig

FIXED, WORST = FixedShare(), WorstCase()


def plan_step(
    view: StepView, config: PolicyConfig, budget: Budget = FIXED, batch: Batch | None = None, admission: Admission = WORST
) -> StepPlan:
    """Plan one step; O(running). ``batch``: `batch_of` all running requests, if the caller has it already."""
    if batch is None:
        batch = batch_of(view.running, (), view.ranks)
    preempt = victims(view, batch)
    if preempt:
        batch = batch_of(view.running, preempt, view.ranks)
    space = admission.space(view, batch, config) if view.online_waiting == 0 else (0, 0)
    if not batch.online and view.online_waiting == 0 and not view.returning_tokens:
        return StepPlan(tuple(batch.kept), (), (), budget.alone_tokens(view, batch), *space, may_end=True)
    tpot_s = batch.tpot_s
    if view.gap_s is not None:
        batch = replace(batch, tpot_s=view.gap_s)
    step_s = limit_s(view, batch)
    plan = budget.beside_chat(view, batch, config, step_s, space)
    offline = len(plan.run) > len(batch.online) or (plan.offline_slots > 0 and len(view.offline_next) > 0)
    first_token = batch.prompts or view.online_waiting or view.returning_tokens or batch.first_tokens
    may_end = offline and not first_token
    return replace(plan, preempt=tuple(sorted(preempt)), limit_s=step_s, may_end=may_end, tpot_s=tpot_s)
