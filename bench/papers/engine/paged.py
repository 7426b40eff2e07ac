"""A step of vLLM 0.32: paged KV, prompts in chunks beside decodes; whoever finds no block preempts the newest.

The same decisions as `harvester.sim.replica.Replica`, step by step (`tests/bench/test_papers_engine.py`).
"""

from __future__ import annotations

from bench.papers.engine.admission import blocks_of, choose
from bench.papers.engine.columns import PROMPT, RUNNING, WAITING, Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.order import leave, wait


@compiled
def left_of(request: Request) -> int:
    """Tokens to compute before its next token: 1 in decode."""
    return request.prompt + request.emitted - request.computed


@compiled
def take_out(engine: Engine, running: Ints, place: int) -> None:
    engine.running -= 1
    for later in range(place, engine.running):
        running[later] = running[later + 1]


@compiled
def preempt(requests: Requests, engine: Engine, rules: Rules, waiting: Ints, index: int) -> None:
    """Free a request's KV: it is swapped to the host, or computed again. The caller has taken it out of the running list."""
    request = requests[index]
    engine.free_blocks += request.blocks
    request.blocks, request.tokens, request.phase = 0, 0, WAITING
    if rules.swaps:
        request.swapped = request.computed
        engine.extra_s += request.computed * rules.swap_token_s
    request.computed = 0
    request.preemptions += 1
    wait(requests, engine, rules, waiting, index)


@compiled
def make_room(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, tokens_left: int) -> bool:
    """Preempt the newest until all others find the blocks they need. Returns whether any was preempted; one always stays."""
    short = -engine.free_blocks
    for place in range(engine.running):
        request = requests[running[place]]
        request.tokens = min(left_of(request), tokens_left)
        tokens_left -= request.tokens
        short += more_blocks(request, rules)
    lost = False
    while short > 0 and engine.running > 1:
        engine.running -= 1
        index = running[engine.running]
        short -= requests[index].blocks + more_blocks(requests[index], rules)
        preempt(requests, engine, rules, waiting, index)
        lost = True
    return lost


@compiled
def more_blocks(request: Request, rules: Rules) -> int:
    """KV blocks that the request lacks for the tokens of this step."""
    return max(0, blocks_of(request.computed + request.tokens, rules) - request.blocks) if request.tokens else 0


@compiled
def run_step(requests: Requests, engine: Engine, rules: Rules, running: Ints, tokens_left: int) -> int:
    """Give tokens and blocks to those that run, in their order. Returns the tokens that are left."""
    for place in range(engine.running):
        request = requests[running[place]]
        request.tokens = min(left_of(request), tokens_left)
        tokens_left -= request.tokens
        give(engine, request, request.tokens, more_blocks(request, rules))
    return tokens_left


@compiled
def give(engine: Engine, request: Request, tokens: int, blocks: int) -> None:
    request.tokens = tokens
    request.blocks += blocks
    engine.free_blocks -= blocks


@compiled
def enter(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, index: int) -> None:
    """Move a waiting request to the running list. KV that the host holds comes back first, and the step waits for it."""
    for place in range(engine.waiting):
        if waiting[place] == index:
            leave(engine, waiting, place)
            break
    request = requests[index]
    request.phase = PROMPT
    if request.swapped:
        request.computed = request.swapped
        engine.extra_s += request.swapped * rules.swap_token_s
        request.swapped = 0
    elif request.preemptions:
        engine.again += request.prompt + request.emitted - 1
    running[engine.running] = index
    engine.running += 1


@compiled
def admit(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints, tokens_left: int) -> None:
    """Admit those that the plan chose, until one does not fit."""
    kept = int(rules.watermark * rules.total_blocks)
    for place in range(engine.chosen):
        if tokens_left <= 0 or engine.running >= rules.max_seqs:
            return
        request = requests[chosen[place]]
        if blocks_of(request.prompt + request.emitted, rules) + (kept if engine.running else 0) > engine.free_blocks:
            return
        enter(requests, engine, rules, running, waiting, chosen[place])
        tokens = min(left_of(request), tokens_left)
        give(engine, request, tokens, blocks_of(request.computed + tokens, rules))
        tokens_left -= tokens


@compiled
def mixed_step(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints) -> None:
    """First those that run, then those that the plan admits; nobody is admitted if KV was short."""
    short = make_room(requests, engine, rules, running, waiting, rules.step_tokens)
    if not short:
        choose(requests, engine, rules, running, waiting, chosen)
    tokens_left = run_step(requests, engine, rules, running, rules.step_tokens)
    if not short:
        admit(requests, engine, rules, running, waiting, chosen, tokens_left)


@compiled
def prompts_first_step(requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints) -> None:
    """vLLM before chunked prefill (SOSP 2023, version 0.1): a step is whole prompts alone, or where none can begin, decodes alone."""
    before = engine.running
    admit(requests, engine, rules, running, waiting, chosen, rules.step_tokens)
    for place in range(before, engine.running):
        request = requests[running[place]]
        if request.tokens < left_of(request):  # whole prompts only: the last one may be longer than the step
            more = blocks_of(request.computed + left_of(request), rules) - request.blocks
            give(engine, request, left_of(request), more)
    if engine.running == before:
        make_room(requests, engine, rules, running, waiting, rules.max_seqs)
        run_step(requests, engine, rules, running, rules.max_seqs)


@compiled
def advance(requests: Requests, engine: Engine, running: Ints) -> None:
    """Apply what the step computed, at ``engine.now_s``. Requests with their last token leave."""
    kept = 0
    for place in range(engine.running):
        request = requests[running[place]]
        if request.tokens > 0:
            if request.computed < request.reached:
                again = min(request.reached - request.computed, request.tokens)
                request.recomputed += again
                engine.recomputed += again
            request.computed += request.tokens
            request.reached = max(request.reached, request.computed)
            if left_of(request) == 0:
                request.emitted += 1
                request.phase = RUNNING
                if request.emitted == 1:
                    request.first_s = engine.now_s
        if request.emitted >= request.output:
            request.end_s = engine.now_s
            engine.free_blocks += request.blocks
            request.blocks = 0
            engine.ended += 1
        else:
            running[kept] = running[place]
            kept += 1
    engine.running = kept
