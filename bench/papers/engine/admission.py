"""Which waiting requests may begin in this step, by the KV that each is counted with."""

from __future__ import annotations

import numpy as np

from bench.papers.engine.columns import Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.order import NEAREST_FIT

BLOCK, LONGEST, PREDICTED, CURVE = range(4)
"""How a request's KV is counted: the blocks it computes now; the longest possible answer; the predicted one; all predictions as a curve."""
LEAST_LEFT, LEFT_SHARE = 16, 0.3  # of what was emitted, where an answer is longer than predicted
LEAST_MARGIN, MOST_MARGIN = 0.02, 0.3  # of the KV, left free by the curve
RECOMPUTED, RAISED, LOWERED = 0.01, 1.5, 0.9  # as `harvester.policy.admission.margin`
LOOK_AGAIN = 16  # plans after which one that did not fit is tried again


@compiled
def blocks_of(tokens: int, rules: Rules) -> int:
    return -(-tokens // rules.block_tokens)


@compiled
def final_blocks(request: Request, rules: Rules) -> int:
    """KV blocks at the end of the answer that the request is counted with."""
    longest = rules.max_output if rules.allocation == LONGEST else max(request.predicted, request.emitted + LEAST_LEFT)
    return blocks_of(request.prompt + longest, rules)


@compiled
def left_tokens(request: Request) -> int:
    """Tokens left of its answer, by the prediction, but never fewer than a minimum."""
    return max(request.predicted - request.emitted, LEAST_LEFT, int(LEFT_SHARE * request.emitted))


@compiled
def left_of_curve(request: Request, rules: Rules) -> float:
    """As `left_tokens`, within the longest possible answer, as in `harvester.policy.admission.expected`."""
    left = max(float(request.predicted - request.emitted), float(LEAST_LEFT), LEFT_SHARE * request.emitted)
    return min(left, float(rules.max_output - request.emitted))


@compiled
def curve_fits(requests: Requests, rules: Rules, held: Ints, count: int, bound: float) -> bool:
    """Whether the KV of the first ``count`` of ``held`` stays within ``bound`` tokens until all have ended.

    Sorted by tokens left, the longest first: when the k-th ends, those before it still run, and each has grown by as much.
    """
    left = np.empty(count, np.float64)
    for place in range(count):
        left[place] = -left_of_curve(requests[held[place]], rules)
    known = 0
    for rank, place in enumerate(np.argsort(left, kind="mergesort")):
        request = requests[held[place]]
        known += request.prompt + request.emitted
        if known + (rank + 1) * (rules.block_tokens / 2 - left[place]) > bound:
            return False
    return True


@compiled
def choose(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints) -> None:
    """Choose waiting requests in order until one does not fit; it keeps those behind it out. This plans the step before it runs."""
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
    """As `harvester.policy.admission.expected.Expected.admitted`; alone, any request fits."""
    free, held = engine.free_blocks, np.empty(engine.running + max(slots, 0) + 1, np.int64)
    for place in range(engine.running):
        request, held[place] = requests[running[place]], running[place]
        if request.prompt + request.emitted - request.computed > 1:
            free -= blocks_of(request.prompt + request.emitted, rules) - blocks_of(request.computed, rules)
    bound = (1.0 - engine.margin) * rules.total_blocks * rules.block_tokens
    for place in range(min(slots, engine.waiting)):
        request = requests[waiting[place]]
        free -= blocks_of(request.prompt + request.emitted, rules)
        if free < 0:
            return
        if place == 0 and engine.running and _still_refused(engine, running, waiting[0], bound):
            return
        held[engine.running + place] = waiting[place]
        if engine.running + place and not curve_fits(requests, rules, held, engine.running + place + 1, bound):
            if place == 0:
                _refuse(engine, running, waiting[0], bound)
            return
        chosen[place] = waiting[place]
        engine.chosen = place + 1


@compiled
def _still_refused(engine: Engine, running: Ints, index: int, bound: float) -> bool:
    """Whether the same request was refused a few plans ago, beside the same ones. Then it is not tried again yet."""
    engine.refused_plans += 1
    if engine.refused_rows == 0 or engine.refused_plans >= LOOK_AGAIN or bound > engine.refused_bound:
        return False
    same = engine.refused == index and engine.refused_rows == engine.running
    return same and engine.refused_newest == running[engine.running - 1]


@compiled
def _refuse(engine: Engine, running: Ints, index: int, bound: float) -> None:
    engine.refused, engine.refused_rows, engine.refused_newest = index, engine.running, running[engine.running - 1]
    engine.refused_bound, engine.refused_plans = bound, 0


@compiled
def _choose_nearest(requests: Requests, engine: Engine, rules: Rules, waiting: Ints, chosen: Ints, slots: int, blocks: int) -> None:
    """MultiRes (EconoServe 2.1): repeatedly the request whose demand of tokens and KV is nearest to what is left of both."""
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
    """Adjust the margin whenever as many tokens were computed as the KV holds: up if too many were recomputed, else down."""
    tokens = engine.forward - engine.judged
    if tokens < rules.total_blocks * rules.block_tokens:
        return
    over = engine.again - engine.judged_again > RECOMPUTED * tokens
    engine.margin = min(MOST_MARGIN, RAISED * engine.margin) if over else max(LEAST_MARGIN, LOWERED * engine.margin)
    engine.judged, engine.judged_again = engine.forward, engine.again
