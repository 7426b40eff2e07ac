"""The loop: arrivals, a step, its time, what it made. One for every system; `Rules` say which step it takes."""

from __future__ import annotations

from bench.papers.engine.admission import CURVE, choose, judge_margin
from bench.papers.engine.columns import Engine, Ints, Log, Requests, Rules
from bench.papers.engine.compiled import compiled
from bench.papers.engine.decoupled import advance_tasks, decoupled_step
from bench.papers.engine.order import sort_again, wait
from bench.papers.engine.paged import advance, mixed_step, prompts_first_step


@compiled
def arrivals(requests: Requests, engine: Engine, rules: Rules, waiting: Ints) -> None:
    while engine.arrived < len(requests) and requests[engine.arrived].arrival_s <= engine.now_s:
        wait(requests, engine, rules, waiting, engine.arrived)
        engine.arrived += 1


@compiled
def step_s(requests: Requests, engine: Engine, rules: Rules, running: Ints, log: Log) -> float:
    """Seconds of the planned step by the roofline; 0 if it is empty. A single token after computed ones is a decode."""
    prompts = decodes = context = sequences = 0
    attention = 0.0
    for place in range(engine.running):
        request = requests[running[place]]
        if request.tokens == 0:
            continue
        sequences += 1
        if request.tokens == 1 and request.computed > 0:
            decodes += 1
            context += request.computed
        else:
            prompts += request.tokens
            attention += request.tokens * (request.computed + request.tokens / 2)
        if engine.steps < log.shape[0]:
            log[engine.steps, running[place]] = request.tokens
    if sequences == 0:
        return 0.0
    computed_s = rules.token_s * (prompts + decodes)
    engine.forward += prompts + decodes
    engine.work_s += computed_s + rules.pair_s * attention
    load_s = max(computed_s, rules.weights_s) + rules.pair_s * attention + rules.context_s * context
    return rules.fixed_s + load_s + rules.sequence_s * sequences


@compiled
def account(requests: Requests, engine: Engine, rules: Rules, running: Ints, queued: Ints, held: Ints, seconds: float) -> None:
    """Add the step to the totals: KV in use, by tokens, and time."""
    tokens = 0
    for place in range(engine.running):
        request = requests[running[place]]
        tokens += request.computed + request.tokens
    for place in range(engine.queued):
        tokens += requests[queued[place]].computed
    if rules.synced:
        for place in range(engine.chosen):
            tokens += requests[held[place]].computed
    engine.kv_s += seconds * tokens / (rules.total_blocks * rules.block_tokens)
    engine.busy_s += seconds


@compiled
def paged_loop(
    requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, chosen: Ints, queued: Ints, log: Log
) -> None:
    """Run until all requests have ended, or until ``rules.until_s``."""
    while engine.ended < len(requests) and engine.now_s < rules.until_s:
        arrivals(requests, engine, rules, waiting)
        if engine.running == 0 and engine.waiting == 0:
            engine.now_s = requests[engine.arrived].arrival_s
            continue
        engine.extra_s = 0.0
        for place in range(engine.running):
            requests[running[place]].tokens = 0
        sort_again(requests, engine, rules, waiting)
        if rules.prompts_first:
            choose(requests, engine, rules, running, waiting, chosen)
            prompts_first_step(requests, engine, rules, running, waiting, chosen)
        else:
            mixed_step(requests, engine, rules, running, waiting, chosen)
        if rules.allocation == CURVE:
            judge_margin(engine, rules)
        seconds = step_s(requests, engine, rules, running, log) + engine.extra_s
        account(requests, engine, rules, running, queued, chosen, seconds)
        engine.now_s += seconds
        engine.steps += 1
        advance(requests, engine, running)


@compiled
def decoupled_loop(
    requests: Requests, engine: Engine, rules: Rules, running: Ints, waiting: Ints, held: Ints, queued: Ints, log: Log
) -> None:
    """Run until all requests have ended, or until ``rules.until_s``."""
    while engine.ended < len(requests) and engine.now_s < rules.until_s:
        arrivals(requests, engine, rules, waiting)
        if engine.running == 0 and engine.waiting == 0 and engine.queued == 0:
            engine.now_s = requests[engine.arrived].arrival_s
            continue
        engine.extra_s = 0.0
        for place in range(engine.running):
            requests[running[place]].tokens = 0
        decoupled_step(requests, engine, rules, running, waiting, queued)
        seconds = step_s(requests, engine, rules, running, log) + engine.extra_s
        account(requests, engine, rules, running, queued, held, seconds)
        engine.now_s += seconds
        engine.steps += 1
        engine.extra_s = 0.0
        advance_tasks(requests, engine, rules, running, queued, held)
        engine.now_s += engine.extra_s
