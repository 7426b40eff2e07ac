"""Which rows are preempted when the running requests need more KV blocks than are free: an answer became longer than expected.

vLLM by itself would notice in the middle of the step, preempt the request that arrived last, and admit nobody.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace

from harvester.policy.step.view import StepPlan
from harvester.policy.view import EngineView, Running


def short_of_kv(view: EngineView, step: StepPlan, *, prompts: bool = True) -> tuple[int, ...]:
    """Places of the offline requests that give up their KV so that the others can run: the newest first, as many as are needed.

    No row starves. The oldest running row gives way to no other row, so it makes a token in each step that it is in, and ends; then the
    next one is the oldest. A row that gave way keeps the tokens it has made, and is admitted before those that never ran.

    ``prompts``: whether any request may compute more than one token.
    """
    running, frees = view.running, view.freeing()
    free_blocks = view.free_blocks + sum([frees(running[place]) for place in step.preempt])
    decodes_blocks = len(step.run) * (1 if view.groups is None else view.groups.per_decode)
    if free_blocks >= decodes_blocks and not (prompts and max([running[place].step_tokens for place in step.run], default=0) > 1):
        return ()  # a decode needs one block at most in each group
    if _most(view, [running[place] for place in step.run]) <= free_blocks:
        return ()  # enough for all of their tokens; the step may compute fewer
    needs = _needs(view, step)
    short = sum(needs.values()) - free_blocks
    if short <= 0:
        return ()
    gone = set(step.preempt)
    rows = [place for place in range(len(running)) if running[place].offline and place not in gone]
    others = len(rows) < len(running) - len(gone)
    lost: list[int] = []
    while short > 0 and len(rows) > (not others):
        newest = rows.pop()
        lost.append(newest)
        short -= frees(running[newest]) + needs.get(newest, 0)
    return tuple(lost)


def given_up(step: StepPlan, lost: Container[int]) -> StepPlan:
    """The plan with the requests at ``lost`` preempted. Nobody is admitted in such a step."""
    run, pause = ([place for place in part if place not in lost] for part in (step.run, step.pause))
    gone = [place for place in (*step.run, *step.pause) if place in lost]
    return replace(step, run=tuple(run), pause=tuple(pause), preempt=(*step.preempt, *gone), offline_slots=0, offline_blocks=0)


def _most(view: EngineView, runs: Sequence[Running]) -> int:
    """KV blocks that all tokens of ``runs`` take."""
    if view.groups is not None:
        return sum([view.step_blocks(one, one.step_tokens) for one in runs])
    block_tokens = view.block_tokens
    return sum([-(-(one.context + one.step_tokens) // block_tokens) - one.blocks_now for one in runs])


def _needs(view: EngineView, step: StepPlan) -> dict[int, int]:
    """KV blocks that each request in the step must get, by place. Prompts count as far as the step's tokens go, in the step's order."""
    left = min([bound for bound in (view.max_tokens, step.budget_tokens) if bound is not None], default=math.inf)
    needs: dict[int, int] = {}
    for place in step.run:
        one = view.running[place]
        tokens = int(min(one.step_tokens, left))
        left -= tokens
        needs[place] = view.step_blocks(one, tokens) if tokens else 0
    return needs


def yielding(view: EngineView, step: StepPlan) -> StepPlan:
    """``step`` with its offline work paused, KV kept, because chat is about to be refused."""
    offline = [place for place in step.run if view.running[place].offline]
    run = tuple([place for place in step.run if not view.running[place].offline])
    pause = (*step.pause, *offline)
    return replace(step, run=run, pause=pause, offline_slots=0, offline_blocks=0, offline_tokens=0, may_end=False)
