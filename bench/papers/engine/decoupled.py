"""EconoServe's step (3): prompts and generation in queues of their own, KV for the predicted answer given at once.

The parts of Algorithm 1: generation tasks until the KV is used (time-synced groups end together), tasks that borrow KV from those, prompts
until the step is full. An answer longer than predicted takes the reserve, then waits again with its KV (3.3.2).
"""

from __future__ import annotations

from bench.papers.engine.admission import blocks_of
from bench.papers.engine.columns import ENDED, HELD, PROMPT, QUEUED, RUNNING, Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.order import leave, sort_again
from bench.papers.engine.paged import left_of, take_out
from bench.papers.engine.tasks import group, lend, select_tasks, unlock


@compiled
def select_prompts(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints) -> None:
    """Prompts until the step is full: those begun, then new ones, within the reserve for prompts where generation tasks wait."""
    left = rules.step_tokens
    for place in range(engine.running):
        request = requests[running[place]]
        if request.phase == RUNNING:
            request.tokens = 1
            left -= 1
    for place in range(engine.running):
        request = requests[running[place]]
        if request.phase == PROMPT and left > 0:
            request.tokens = min(left_of(request), left)
            left -= request.tokens
    sort_again(requests, engine, rules, waiting)
    while left > 0 and engine.waiting and engine.running + engine.queued < rules.max_seqs:
        index = waiting[0]
        request = requests[index]
        need = blocks_of(request.prompt + request.emitted, rules)
        free = engine.free_blocks - rules.reserve_blocks
        if engine.queued:
            free = min(free, rules.prompt_blocks - engine.queued_blocks)
        if need > free and (engine.running or engine.queued):
            return
        leave(engine, waiting, 0)
        request.phase, request.blocks = PROMPT, need
        engine.free_blocks -= need
        engine.queued_blocks += need
        request.tokens = min(left_of(request), left)
        left -= request.tokens
        running[engine.running] = index
        engine.running += 1


@compiled
def decoupled_step(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, queued: Ints) -> None:
    since = engine.running
    select_tasks(requests, engine, rules, running, queued)
    if rules.lends:
        lend(requests, engine, rules, running, queued, since)
    if rules.synced:
        group(requests, engine, running, since)
    select_prompts(requests, engine, rules, running, waiting)
    if engine.running == 0 and engine.queued:
        unlock(requests, engine, rules, waiting, queued)


@compiled
def queue_task(requests: Requests, engine: Engine, running: Ints, queued: Ints, place: int) -> None:
    """Move a running request to the generation queue, with the KV it has."""
    index = running[place]
    take_out(engine, running, place)
    request = requests[index]
    request.phase = QUEUED
    engine.queued_blocks += request.blocks
    queued[engine.queued] = index
    engine.queued += 1


@compiled
def end(requests: Requests, engine: Engine, rules: Rules, running: Ints, held: Ints, place: int) -> None:
    """The request has its last token. In a time-synced group its KV and answer are kept until the last of the group has ended."""
    index = running[place]
    take_out(engine, running, place)
    request = requests[index]
    engine.reserve_blocks -= request.borrowed
    request.borrowed = 0
    if rules.synced and request.group and not request.returns:
        request.phase = HELD
        held[engine.chosen] = index
        engine.chosen += 1
    else:
        release(engine, request)


@compiled
def release(engine: Engine, request: Request) -> None:
    request.phase, request.end_s = ENDED, engine.now_s
    engine.free_blocks += request.blocks
    request.blocks = 0
    engine.ended += 1


@compiled
def goes_on(requests: Requests, engine: Engine, running: Ints, group: int) -> bool:
    """Whether one of the group still runs."""
    for place in range(engine.running):
        if requests[running[place]].group == group:
            return True
    return False


@compiled
def release_groups(requests: Requests, engine: Engine, running: Ints, held: Ints) -> None:
    """Release the held answers of groups that have nobody running any more."""
    kept = 0
    for place in range(engine.chosen):
        request = requests[held[place]]
        if goes_on(requests, engine, running, request.group):
            held[kept] = held[place]
            kept += 1
        else:
            release(engine, request)
    engine.chosen = kept


@compiled
def outgrown(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints, place: int) -> bool:
    """The request has used its allocation: it gets a block of the reserve, or waits again. Returns whether it still runs."""
    request = requests[running[place]]
    if request.returns == 0 and engine.reserve_blocks < rules.reserve_blocks and engine.free_blocks > 0:
        engine.reserve_blocks += 1
        engine.free_blocks -= 1
        request.borrowed += 1
        request.blocks += 1
        request.limit += rules.block_tokens
        request.group = 0
        return True
    if request.returns:  # the lender needs its KV: what was generated goes to the host
        request.swapped += request.emitted
        engine.extra_s += request.emitted * rules.swap_token_s
    engine.reserve_blocks -= request.borrowed
    request.borrowed = request.group = 0
    request.preemptions += 1
    queue_task(requests, engine, running, queued, place)
    return False


@compiled
def advance_tasks(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints, held: Ints) -> None:
    """Apply what the step computed, at ``engine.now_s``."""
    place = 0
    while place < engine.running:
        request = requests[running[place]]
        request.computed += request.tokens
        again = min(max(0, request.reached - request.computed + request.tokens), request.tokens)
        request.recomputed += again
        engine.recomputed += again
        request.reached = max(request.reached, request.computed)
        if request.tokens == 0 or left_of(request) > 0:
            place += 1
            continue
        request.emitted += 1
        if request.emitted == 1:
            request.first_s = engine.now_s
        if request.emitted >= request.output:
            if request.phase == PROMPT:
                engine.queued_blocks -= request.blocks
                request.group = 0
            end(requests, engine, rules, running, held, place)
        elif request.phase == PROMPT:
            engine.queued_blocks -= request.blocks  # `queue_task` counts them again
            queue_task(requests, engine, running, queued, place)
        elif request.emitted >= request.limit or (request.returns and engine.steps >= request.returns):
            place += outgrown(requests, engine, rules, running, queued, place)
        else:
            place += 1
    if rules.synced:
        release_groups(requests, engine, running, held)
