"""The order of waiting requests: by a key, the lowest first. Whoever lost its KV goes before all others, as in vLLM."""

from __future__ import annotations

from bench.papers.engine.columns import Engine, Ints, Request, Requests, Rules
from bench.papers.engine.compiled import compiled

FCFS, SHORTEST, DEADLINE, ECONOSERVE, NEAREST_FIT = range(5)
BEGUN = -1e12  # before any other key
BAND_TOKENS = 128  # EconoServe 3.4
FIRST_BAND, SECOND_BAND = 1e6, 1e3
SORT_STEPS = 16  # between updates of keys that depend on the clock


@compiled
def deadline_band(left_s: float) -> int:
    """EconoServe's ranges of time to the deadline (3.4)."""
    if left_s < 0.2:
        return 0
    if left_s < 0.5:
        return 1
    return 2 if left_s < 2.0 else 3


@compiled
def econoserve_key(request: Request, now_s: float) -> float:
    """Deadline range, then KV held, then predicted rest, the longest first (EconoServe 3.4); ``BAND_TOKENS`` a range."""
    held = request.computed // BAND_TOKENS
    longest = max(request.predicted - request.emitted, 0) // BAND_TOKENS
    return deadline_band(request.due_s - now_s) * FIRST_BAND - held * SECOND_BAND - longest


@compiled
def key_of(request: Request, order: int, now_s: float) -> float:
    if request.preemptions > 0 and order != ECONOSERVE:
        return BEGUN + request.arrival_s
    if order == SHORTEST:
        return float(request.predicted)
    if order == DEADLINE:
        return request.due_s
    if order == ECONOSERVE:
        return econoserve_key(request, now_s)
    return request.arrival_s


@compiled
def wait(requests: Requests, engine: Engine, rules: Rules, waiting: Ints, index: int) -> None:
    """Insert a request that has arrived or lost its KV, by its key."""
    request = requests[index]
    request.key = key_of(request, rules.order, engine.now_s)
    place = engine.waiting
    while place > 0 and requests[waiting[place - 1]].key > request.key:
        waiting[place] = waiting[place - 1]
        place -= 1
    waiting[place] = index
    engine.waiting += 1


@compiled
def leave(engine: Engine, waiting: Ints, place: int) -> None:
    """Remove the waiting request at ``place``."""
    engine.waiting -= 1
    for later in range(place, engine.waiting):
        waiting[later] = waiting[later + 1]


@compiled
def sort_again(requests: Requests, engine: Engine, rules: Rules, waiting: Ints) -> None:
    """Update keys that depend on the clock every `SORT_STEPS` steps; insertion sort, since little has changed."""
    if rules.order != ECONOSERVE or engine.steps % SORT_STEPS:
        return
    count, engine.waiting = engine.waiting, 0
    for place in range(count):
        wait(requests, engine, rules, waiting, waiting[place])
