"""EconoServe's generation tasks: which are chosen, which borrow KV from those, which end together (3.2 to 3.4)."""

from __future__ import annotations

from bench.papers.engine.admission import LEAST_LEFT, blocks_of, left_tokens
from bench.papers.engine.columns import RUNNING, WAITING, Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.order import ECONOSERVE, econoserve_key, wait

LOOKED_AT = 40  # tasks that the search for one that fits goes through (the paper: a binary search)


@compiled
def need_blocks(request: Request, rules: Rules) -> int:
    """KV blocks beyond those it holds, to generate all that is predicted to be left."""
    return blocks_of(request.prompt + request.emitted + left_tokens(request), rules) - request.blocks


@compiled
def free_for_tasks(engine: Engine, rules: Rules) -> int:
    """KV blocks beside the reserve for long answers and what is left of the one for prompts."""
    return engine.free_blocks - rules.reserve_blocks - max(0, rules.prompt_blocks - engine.queued_blocks)


@compiled
def start(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints, place: int, lent: int) -> None:
    """The task at ``place`` generates from this step on. ``lent``: steps until a lender wants its KV back; 0: it gets KV of its own."""
    index = queued[place]
    request = requests[index]
    engine.queued -= 1
    for later in range(place, engine.queued):
        queued[later] = queued[later + 1]
    engine.queued_blocks -= request.blocks
    left = left_tokens(request)
    if lent == 0:
        more = need_blocks(request, rules)
        request.blocks += more
        engine.free_blocks -= more
    if request.swapped:
        engine.extra_s += request.swapped * rules.swap_token_s
        request.swapped = 0
    request.limit = request.emitted + left
    request.returns = engine.steps + lent if lent else 0
    request.phase = RUNNING
    running[engine.running] = index
    engine.running += 1


@compiled
def group(requests: Requests, engine: Engine, running: Ints, since: int) -> None:
    """Those started in this step with the same predicted rest end together."""
    for place in range(since, engine.running):
        request = requests[running[place]]
        request.group = 0
        for earlier in range(since, place):
            other = requests[running[earlier]]
            if other.limit - other.emitted == request.limit - request.emitted:
                request.group = other.group
                break
        if request.group == 0:
            engine.groups += 1
            request.group = engine.groups


@compiled
def select_tasks(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints) -> None:
    """Generation tasks in their order until the KV is used. In EconoServe's order, a task that does not fit is skipped."""
    if rules.order == ECONOSERVE and engine.queued > 1:
        _sort_tasks(requests, engine, queued)
    place = passed = 0
    while place < engine.queued and engine.running < rules.max_seqs:
        if need_blocks(requests[queued[place]], rules) <= free_for_tasks(engine, rules):
            start(requests, engine, rules, running, queued, place, 0)
        elif rules.order == ECONOSERVE and passed < LOOKED_AT:
            place += 1
            passed += 1
        else:
            return


@compiled
def _sort_tasks(requests: Requests, engine: Engine, queued: Ints) -> None:
    for place in range(1, engine.queued):
        index, slot = queued[place], place
        key = econoserve_key(requests[index], engine.now_s)
        while slot > 0 and econoserve_key(requests[queued[slot - 1]], engine.now_s) > key:
            queued[slot] = queued[slot - 1]
            slot -= 1
        queued[slot] = index


@compiled
def lend(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints, since: int) -> None:
    """KV pipelining (3.2): a task started in this step lends the second half of its KV, a quarter, an eighth; borrowers lend on."""
    place = since
    while place < engine.running:
        lender = requests[running[place]]
        slot = (lender.limit - lender.emitted) // 2
        if lender.returns:
            slot = min(slot, (lender.returns - engine.steps) // 2)
        while slot > LEAST_LEFT and engine.queued and engine.running < rules.max_seqs:
            found = _nearest(requests, engine, queued, slot, rules.buffer)
            if found >= 0:
                start(requests, engine, rules, running, queued, found, slot)
            slot //= 2
        place += 1


@compiled
def _nearest(requests: Requests, engine: Engine, queued: Ints, slot: int, buffer: float) -> int:
    """Place of the task with the longest rest that ends within ``slot`` steps, buffer included; negative where there is none."""
    found, longest = -1, 0
    for place in range(engine.queued):
        left = left_tokens(requests[queued[place]])
        if left * (1.0 + buffer) <= slot and left > longest:
            found, longest = place, left
    return found


@compiled
def unlock(requests: Requests, engine: Engine, rules: Rules, waiting: Ints, queued: Ints) -> None:
    """Waiting tasks hold all KV: the newest gives up its own, and is computed again."""
    lost = 0
    for place in range(1, engine.queued):
        if requests[queued[place]].arrival_s > requests[queued[lost]].arrival_s:
            lost = place
    index = queued[lost]
    engine.queued -= 1
    for later in range(lost, engine.queued):
        queued[later] = queued[later + 1]
    request = requests[index]
    engine.queued_blocks -= request.blocks
    engine.free_blocks += request.blocks
    request.blocks, request.computed, request.swapped, request.phase = 0, 0, 0, WAITING
    request.preemptions += 1
    wait(requests, engine, rules, waiting, index)
