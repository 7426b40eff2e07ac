"""The plan of a step: what offline work may take of it, so that chat goes first.

Reserve first: offline work is admitted only into what is left beside a reserve for arrivals, counting the KV it will hold when it ends.
Preempt second: an offline request is thrown out only when an online arrival would otherwise find no slot or no KV.
In tokens: beside online work, as many as keep the step within what the online requests are promised, by the latency model and its own
error; a fixed share where there is no model yet; no bound where offline work is alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harvester.policy.budget import longest_decode, offline_budget
from harvester.policy.guarantee import stretched_s
from harvester.policy.latency import LatencyModel
from harvester.policy.load import StepLoad
from harvester.policy.room import room, victims
from harvester.policy.view import Limits, Plan, Running, View

__all__ = ["Limits", "Plan", "Running", "View", "limit_s", "online_load", "plan_step"]

LEAST_CHUNK = 256  # tokens
PROMPTS_PER_STEP = 16  # most offline prompts in a step beside online work: each is counted in the budget, whether its turn comes or not


@dataclass(frozen=True, slots=True)
class _Parts:
    """Places in ``View.running`` that are not preempted: online by rank, offline oldest first."""

    online: list[int]
    decodes: list[int]
    prefills: list[int]


def plan_step(view: View, limits: Limits, model: LatencyModel | None = None) -> Plan:
    """Plan one step; O(running). Without a ``model`` that is ready, or an objective to hold, the token share is the fixed one."""
    preempt = victims(view)
    kept = [i for i in range(len(view.running)) if i not in preempt]
    parts = _parts(view, kept)
    if not parts.online and view.online_waiting == 0:
        slots, blocks = room(view, limits)
        return Plan(tuple(kept), (), (), _alone_tokens(view, parts, model), slots, blocks, preemptible=True)
    slots, blocks = room(view, limits) if view.online_waiting == 0 else (0, 0)
    step_s = limit_s(view)
    if model is None or not model.ready or step_s == math.inf:
        plan = _fixed(view, parts, limits, (slots, blocks))
    else:
        slots = min(slots, max(0, PROMPTS_PER_STEP - len(parts.prefills)))
        plan = _budgeted(view, parts, limits, model, step_s, (slots, blocks))
    return replace(plan, preempt=tuple(sorted(preempt))) if preempt else plan


def _alone_tokens(view: View, parts: _Parts, model: LatencyModel | None) -> int | None:
    """Tokens of a step of offline work alone: no bound, or what fits ``offline_step_s``, but never less than a small prompt chunk.

    An arrival may end such a step, and what it computed is lost: where arrivals are frequent, steps are kept short beside the time between
    two of them.
    """
    if model is None or not model.ready or view.offline_step_s == math.inf or view.max_tokens is None:
        return None
    contexts = [view.running[i].context for i in parts.decodes]
    behind = max((view.running[i].context for i in parts.prefills), default=0)
    fit = offline_budget(model, StepLoad(), view.offline_step_s, contexts, behind, view.max_tokens, max(1, len(parts.prefills)))
    return min(view.max_tokens, max(fit.tokens, len(contexts) + LEAST_CHUNK))


def limit_s(view: View) -> float:
    """Seconds that the step may take: inf where nothing is promised, 0 or less where a first token is already late.

    The least TPOT of those that decode, and the time left until the earliest first token is due. Where the prompts need several steps,
    each gets an equal part of that time.
    """
    online = [r for r in view.running if not r.offline]
    tpot_s = min((r.tpot_s for r in online if r.decoding), default=math.inf)
    due_s = min((r.due_s for r in online if not r.decoding), default=math.inf)
    slack_s = min(due_s, view.waiting_due_s if view.online_waiting else math.inf) - view.now_s
    if view.max_tokens is not None and slack_s > 0:
        slack_s /= max(1, math.ceil((sum(r.step_tokens for r in online) + view.waiting_tokens) / view.max_tokens))
    return min(tpot_s, slack_s)


def online_load(view: View) -> StepLoad:
    """What the online requests compute in the step: all that run and all that wait, within ``max_tokens``."""
    left = math.inf if view.max_tokens is None else view.max_tokens
    decodes = contexts = chunks = seqs = 0
    attention = 0.0
    for r in view.running:
        if r.offline or left <= 0:
            continue
        tokens = int(min(r.step_tokens, left))
        left -= tokens
        seqs += 1
        if tokens <= 1:
            decodes, contexts = decodes + tokens, contexts + r.context
        else:
            chunks += tokens
            attention += tokens * (r.context + tokens / 2)
    waiting = int(min(view.waiting_tokens, left)) if view.online_waiting else 0
    load = StepLoad(chunks, attention, decodes, contexts, seqs) + StepLoad.prefill(waiting)
    return load + StepLoad(seqs=view.online_waiting - 1) if waiting else load


def _parts(view: View, kept: list[int]) -> _Parts:
    running = view.running
    online = sorted((i for i in kept if not running[i].offline), key=lambda i: running[i].rank)
    offline = [i for i in kept if running[i].offline]
    decodes = [i for i in offline if running[i].step_tokens <= 1]
    prefills = [i for i in offline if running[i].step_tokens > 1]
    return _Parts(online, decodes, prefills)


def _budgeted(view: View, parts: _Parts, limits: Limits, model: LatencyModel, step_s: float, space: tuple[int, int]) -> Plan:
    running, load = view.running, online_load(view)
    step_s = stretched_s(
        step_s * model.margin / model.margin_at(step_s), view, model.bound(load)
    )  # the budget counts with the margin of all steps, short ones among them
    longest = longest_decode(model, load, step_s)  # one that fits in no step beside chat must not keep the others out
    decodes = [i for i in parts.decodes if running[i].context <= longest]
    prefills = parts.prefills[:PROMPTS_PER_STEP]
    contexts = [running[i].context for i in decodes]
    behind = max((running[i].context for i in prefills), default=0)
    most = _most_tokens(view, limits, model, load) - load.tokens
    budget = offline_budget(model, load, step_s, contexts, behind, most, len(prefills) + space[0])
    run = decodes[: budget.decodes]
    if view.online_waiting or budget.prefill_tokens == 0:  # offline prompts that run would take the waiting prompts' tokens
        space = (0, 0)
    else:
        run += prefills
    chosen = frozenset(run)
    pause = tuple(i for i in (*parts.decodes, *parts.prefills) if i not in chosen)
    tokens = budget.decodes if view.online_waiting else budget.tokens
    whole = None if view.online_waiting else sum(running[i].step_tokens for i in parts.online) + tokens
    return Plan((*parts.online, *run), pause, (), whole, *space, offline_tokens=tokens)


def _most_tokens(view: View, limits: Limits, model: LatencyModel, load: StepLoad) -> int:
    """No step grows past twice what the model has seen: one that saw only small steps knows nothing of large ones."""
    reach = max(model.reach_tokens, load.tokens + limits.offline_step_tokens)
    return reach if view.max_tokens is None else min(reach, view.max_tokens)


def _fixed(view: View, parts: _Parts, limits: Limits, space: tuple[int, int]) -> Plan:
    share = limits.offline_step_tokens
    if view.online_waiting:  # its prompt takes what the step can hold; offline prompts wait a step
        fit, rest = parts.decodes[:share], parts.decodes[share:]
        return Plan((*parts.online, *fit), (*rest, *parts.prefills), (), None, 0, 0, offline_tokens=share)
    tokens = sum(view.running[i].step_tokens for i in parts.online) + share
    return Plan((*parts.online, *parts.decodes, *parts.prefills), (), (), tokens, *space, offline_tokens=share)
