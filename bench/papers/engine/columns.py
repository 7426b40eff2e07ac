"""The records that the compiled loop works on: one for each request, one for the engine, one for its rules.

The classes say what the columns are; the loop sees them as fields of numpy records, which it changes in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Log = NDArray[np.int32]
"""Tokens by step and request; a log with no rows records nothing."""

WAITING, PROMPT, QUEUED, RUNNING, HELD, ENDED = range(6)
"""Phases of a request. QUEUED: its prompt is computed and it waits to generate. HELD: it has ended and its group has not."""


class Request:
    """``predicted``: tokens of its answer as the scheduler is told, with padding. Times are seconds of the virtual clock."""

    arrival_s: float
    prompt: int
    output: int
    predicted: int
    due_s: float  # when it should have ended, by the prediction
    key: float  # its place among those that wait: the lowest first
    phase: int
    computed: int  # tokens whose KV is there
    reached: int  # most tokens ever computed; those below it are recomputed
    emitted: int
    blocks: int
    tokens: int  # to compute in this step
    swapped: int  # tokens of KV in host memory
    preemptions: int
    recomputed: int
    first_s: float
    end_s: float
    limit: int  # emitted tokens that its allocation lasts for; decoupled queues only
    group: int  # those that were chosen together with the same predicted rest
    returns: int  # step in which a lender wants its KV back; 0: nothing is lent to it
    borrowed: int  # blocks of the reserve


class Engine:
    now_s: float
    free_blocks: int
    running: int  # how many of the running list are in use
    waiting: int
    chosen: int
    arrived: int
    ended: int
    steps: int
    busy_s: float
    extra_s: float  # that this step takes beside its load: swapping, choosing
    recomputed: int
    again: int  # tokens that preempted requests recompute, counted when they return
    queued: int  # requests that wait to generate
    queued_blocks: int  # held by prompts and those that wait to generate
    reserve_blocks: int  # of the reserve, in use
    groups: int
    margin: float  # of the KV that the curve leaves free
    judged: int  # tokens that were computed when the margin was judged last
    judged_again: int  # the same of ``again``
    refused: int  # the request that the curve refused last, beside so many, the newest of them, with so many tokens of KV
    refused_rows: int
    refused_newest: int
    refused_bound: float
    refused_plans: int  # since then
    kv_s: float  # share of KV tokens in use, over time
    work_s: float  # seconds that the floating-point operations alone would take
    forward: int  # tokens computed


class Rules:
    """What a system is, and what its machine costs. Blocks are KV blocks."""

    total_blocks: int
    block_tokens: int
    max_seqs: int
    step_tokens: int
    max_output: int  # tokens that a worst case counts with
    order: int
    allocation: int
    prompts_first: bool
    swaps: bool
    watermark: float  # share of the KV that a new prompt leaves free
    synced: bool
    lends: bool
    prompt_blocks: int  # kept for prompts
    reserve_blocks: int  # kept for answers longer than predicted
    buffer: float  # of a borrower's answer, beside it
    margin: float
    sequence_s: float  # of scheduling, a sequence and step
    look_s: float  # of scheduling, each waiting request that is looked at
    swap_token_s: float  # of a token's KV, in one direction
    transfer_token_s: float  # of a token's KV, from the machine that computed its prompt
    until_s: float
    fixed_s: float
    token_s: float
    weights_s: float
    pair_s: float
    context_s: float


Requests = Sequence[Request]


def columns(kind: type) -> np.dtype[Any]:
    """The numpy record type with the fields of ``kind``."""
    plain = {int: np.int64, float: np.float64, bool: np.bool_}
    return np.dtype([(name, plain[found]) for name, found in get_type_hints(kind).items()])


REQUEST, ENGINE, RULES = columns(Request), columns(Engine), columns(Rules)


def requests(count: int) -> Requests:
    """``count`` empty requests, as numpy's array of records."""
    return cast(Requests, np.zeros(count, REQUEST).view(np.recarray))


def engines() -> Sequence[Engine]:
    """An array of one engine."""
    return cast(Sequence[Engine], np.zeros(1, ENGINE).view(np.recarray))


def rules(**given: float) -> Sequence[Rules]:
    """An array of one set of rules. Raises ValueError for a name that is no rule."""
    found = np.zeros(1, RULES).view(np.recarray)
    for name, value in given.items():
        found[name] = value
    return cast(Sequence[Rules], found)
