"""The plan of a step: what offline work may take of it, so that chat goes first.

Reserve first: offline work is admitted only into what is left beside a reserve for arrivals, counting the KV it will hold when it ends.
Preempt second: an offline request is thrown out only when an online arrival would otherwise find no slot or no KV.
In tokens: beside online work, as many as keep the step within what the online requests are promised, by the latency model and its own
error; a fixed share where there is no model yet; no bound where offline work is alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.step.batch import Batch, batch_of
from harvester.policy.step.budget import longest_decode, offline_budget
from harvester.policy.step.guarantee import opened, stretched_s
from harvester.policy.step.headroom import room, victims
from harvester.policy.step.slo import Online, added_s, limit_s, online_work
from harvester.policy.view import Plan, PolicyConfig, Running, View

__all__ = ["Plan", "PolicyConfig", "Running", "View", "plan_step"]

MIN_CHUNK = 64  # tokens
PROMPTS_PER_STEP = 16  # most offline prompts in a step beside online work: each is counted in the budget, whether its turn comes or not


def plan_step(view: View, limits: PolicyConfig, model: LatencyModel | None = None, batch: Batch | None = None) -> Plan:
    """Plan one step; O(running). Without a ``model`` that is ready, or an objective to hold, the token share is the fixed one.

    ``batch``: `batch_of` all that run, where the caller has it already.
    """
    preempt = victims(view)
    if batch is None or preempt:
        batch = batch_of(view.running, preempt)
    slots, blocks = opened(room(view, batch, limits), view, batch) if view.online_waiting == 0 else (0, 0)
    if not batch.online and view.online_waiting == 0 and not view.returning:
        return Plan(tuple(batch.kept), (), (), _alone_tokens(view, batch, model), slots, blocks, preemptible=True)
    step_s = limit_s(view, batch)
    if model is None or not model.ready or (step_s == math.inf and limits.ttft_s == math.inf):
        plan = _fixed(view, batch, limits, (slots, blocks))
    else:
        slots = min(slots, max(0, PROMPTS_PER_STEP - len(batch.prefills)))
        plan = _budgeted(view, batch, limits, model, step_s, (slots, blocks))
    return replace(plan, preempt=tuple(sorted(preempt)), limit_s=step_s)


def _alone_tokens(view: View, batch: Batch, model: LatencyModel | None) -> int | None:
    """Tokens of a step of offline work alone: no bound, or what fits ``offline_step_s``, but never less than a small prompt chunk.

    An arrival may end such a step, and what it computed is lost: where arrivals are frequent, steps are kept short beside the time between
    two of them.
    """
    if model is None or not model.ready or view.offline_step_s == math.inf or view.max_tokens is None:
        return None
    contexts = batch.contexts
    behind = max((view.running[i].context for i in batch.prefills), default=0)
    step_s = model.margin * view.offline_step_s  # the best length on average, no promise
    fit = offline_budget(model, StepLoad(), step_s, contexts, behind, view.max_tokens, max(1, len(batch.prefills)))
    return min(view.max_tokens, max(fit.tokens, len(contexts) + MIN_CHUNK))


def _budgeted(view: View, batch: Batch, limits: PolicyConfig, model: LatencyModel, step_s: float, space: tuple[int, int]) -> Plan:
    running, online = view.running, online_work(view, batch, limits, model)
    load, alone_s = online.load, model.predict(online.load)
    # The budget counts with the margin of all steps, short ones among them.
    step_s *= model.margin / model.margin_at(step_s) if step_s < math.inf else 1.0
    step_s = min(step_s, model.margin * (alone_s + added_s(view, batch, limits, alone_s)))
    step_s = stretched_s(step_s, view, model.margin * alone_s)
    longest = longest_decode(model, load, step_s)  # one that fits in no step beside chat must not keep the others out
    decodes, contexts = batch.decodes, batch.contexts
    if contexts and max(contexts) > longest:
        decodes = [i for i, context in zip(decodes, contexts, strict=True) if context <= longest]
        contexts = [running[i].context for i in decodes]
    prefills = batch.prefills[:PROMPTS_PER_STEP]
    behind = max((running[i].context for i in prefills), default=0)
    most = _max_tokens(view, limits, model, load) - load.tokens
    budget = offline_budget(model, load, step_s, contexts, behind, most, len(prefills) + space[0])
    run, tokens = decodes[: budget.decodes], budget.tokens
    if view.online_waiting or online.prompt_tokens is not None:
        tokens, space = budget.decodes, (0, 0)  # offline prompts that run would take the tokens of prompts that wait
    elif budget.prefill_tokens == 0:
        space = (0, 0)
    else:
        run += prefills
    pause: tuple[int, ...] = ()
    if len(run) < len(batch.decodes) + len(batch.prefills):
        chosen = frozenset(run)
        pause = tuple([i for i in (*batch.decodes, *batch.prefills) if i not in chosen])
    return Plan((*batch.online, *run), pause, (), _whole(view, batch, online, tokens), *space, offline_tokens=tokens)


def _whole(view: View, batch: Batch, online: Online, offline_tokens: int) -> int | None:
    """Tokens of the whole step; None where waiting prompts may take all that it can hold."""
    if online.prompt_tokens is not None:
        return online.load.decode_seqs + online.prompt_tokens + offline_tokens
    if view.online_waiting:
        return None
    return len(batch.decoding) + batch.prompt_tokens + view.returning + offline_tokens


def _max_tokens(view: View, limits: PolicyConfig, model: LatencyModel, load: StepLoad) -> int:
    """No step grows past twice what the model has seen: one that saw only small steps knows nothing of large ones."""
    reach = max(model.reach_tokens, load.tokens + limits.offline_step_tokens)
    return reach if view.max_tokens is None else min(reach, view.max_tokens)


def _fixed(view: View, batch: Batch, limits: PolicyConfig, space: tuple[int, int]) -> Plan:
    share = limits.offline_step_tokens
    if view.online_waiting:  # its prompt takes what the step can hold; offline prompts wait a step
        fit, rest = batch.decodes[:share], batch.decodes[share:]
        return Plan((*batch.online, *fit), (*rest, *batch.prefills), (), None, 0, 0, offline_tokens=share)
    tokens = sum(view.running[i].step_tokens for i in batch.online) + view.returning + share
    return Plan((*batch.online, *batch.decodes, *batch.prefills), (), (), tokens, *space, offline_tokens=share)
