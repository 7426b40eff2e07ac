"""Who of those that wait may begin in this step, by the KV that it is counted with."""

from __future__ import annotations

import numpy as np

from bench.papers.engine.columns import Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.order import NEAREST_FIT

BLOCK, LONGEST, PREDICTED, CURVE = range(4)
"""Counted with: the blocks of what is computed now; the longest answer there is; the predicted one; all predictions as a curve."""
LEAST_LEFT, LEFT_SHARE = 16, 0.3  # of what was emitted, where an answer is longer than predicted
LEAST_MARGIN, MOST_MARGIN = 0.02, 0.3  # of the KV, left free by the curve
RECOMPUTED, RAISED, LOWERED = 0.01, 1.5, 0.9  # as `harvester.policy.step.margin`


@compiled
def blocks_of(tokens: int, rules: Rules) -> int:
    return -(-tokens // rules.block_tokens)


@compiled
def final_blocks(request: Request, rules: Rules) -> int:
    """When it has made the answer that it is counted with."""
    longest = rules.max_output if rules.allocation == LONGEST else max(request.predicted, request.emitted + LEAST_LEFT)
    return blocks_of(request.prompt + longest, rules)


@compiled
def left_tokens(request: Request) -> int:
    """Of its answer, as expected."""
    return max(request.predicted - request.emitted, LEAST_LEFT, int(LEFT_SHARE * request.emitted))


@compiled
def curve_fits(requests: Requests, rules: Rules, held: Ints, count: int, margin: float) -> bool:
    """Whether the KV of the first ``count`` of ``held`` stays within the bound until all have ended.

    Sorted by tokens left, the longest first: when the k-th ends, those before it still run, and each has grown by as much.
    """
    left = np.empty(count, np.int64)
    for place in range(count):
        left[place] = -left_tokens(requests[held[place]])
    bound = (1.0 - margin) * rules.total_blocks * rules.block_tokens
    context = 0
    for rank, place in enumerate(np.argsort(left, kind="mergesort")):
        request = requests[held[place]]
        context += request.prompt + request.emitted
        if context + (rank + 1) * (rules.block_tokens / 2 - left[place]) > bound:
            return False
    return True


@compiled
def choose(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints) -> None:
    """The first of those that wait that fit; one that does not keeps those behind it out. The plan of a step, made before it."""
    engine.chosen = 0
    if engine.waiting == 0:
        return
    slots = rules.max_seqs - engine.running
    if rules.allocation == CURVE:
        _choose_by_curve(requests, engine, rules, running, waiting, chosen, slots)
        return
    blocks = rules.total_blocks
    if rules.allocation != BLOCK:
        for place in range(engine.running):
            blocks -= final_blocks(requests[running[place]], rules)
    if rules.order == NEAREST_FIT:
        _choose_nearest(requests, engine, rules, waiting, chosen, slots, blocks)
        return
    for place in range(min(slots, engine.waiting)):
        if rules.allocation != BLOCK:
            need = final_blocks(requests[waiting[place]], rules)
            if need > blocks and (engine.running or place):
                return
            blocks -= need
        chosen[place] = waiting[place]
        engine.chosen = place + 1


@compiled
def _choose_by_curve(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints, slots: int) -> None:
    held = np.empty(engine.running + max(slots, 0) + 1, np.int64)
    held[: engine.running] = running[: engine.running]
    count, free = engine.running, engine.free_blocks
    for place in range(min(slots, engine.waiting)):
        request = requests[waiting[place]]
        held[count] = waiting[place]
        free -= blocks_of(request.prompt + request.emitted, rules)
        if count and (free < 0 or not curve_fits(requests, rules, held, count + 1, engine.margin)):
            return
        count += 1
        chosen[place] = waiting[place]
        engine.chosen = place + 1


@compiled
def _choose_nearest(requests: Requests, engine: Engine, rules: Rules, waiting: Ints, chosen: Ints, slots: int, blocks: int) -> None:
    """MultiRes (EconoServe 2.1): again and again the one whose demand of tokens and KV is nearest to what is left of both."""
    tokens, taken = max(0, rules.step_tokens - engine.running), np.zeros(engine.waiting, np.bool_)
    while engine.chosen < slots and tokens > 0:
        found, nearest = engine.waiting, np.inf
        for place in range(engine.waiting):
            request = requests[waiting[place]]
            need = final_blocks(request, rules)
            if taken[place] or (need > blocks and (engine.running or engine.chosen)):
                continue
            of_tokens, of_blocks = (request.prompt - tokens) / rules.step_tokens, (need - blocks) / rules.total_blocks
            if of_tokens**2 + of_blocks**2 < nearest:
                found, nearest = place, of_tokens**2 + of_blocks**2
        engine.extra_s += rules.look_s * engine.waiting
        if found == engine.waiting:
            return
        taken[found] = True
        chosen[engine.chosen] = waiting[found]
        engine.chosen += 1
        tokens -= requests[waiting[found]].prompt
        blocks -= final_blocks(requests[waiting[found]], rules)


@compiled
def judge_margin(engine: Engine, rules: Rules) -> None:
    """Whenever as many tokens were computed as the KV holds: more is left free where too many of them were computed again."""
    tokens = engine.forward - engine.judged
    if tokens < rules.total_blocks * rules.block_tokens:
        return
    over = engine.recomputed - engine.judged_again > RECOMPUTED * tokens
    engine.margin = min(MOST_MARGIN, RAISED * engine.margin) if over else max(LEAST_MARGIN, LOWERED * engine.margin)
    engine.judged, engine.judged_again = engine.forward, engine.recomputed
