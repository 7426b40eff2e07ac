"""Applies the order of online requests to slots and KV: which requests have none in this step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import islice

from harvester.policy.order.online import OnlineOrder
from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting


def ranked(order: OnlineOrder, running: Collection[str], waiting: Container[str], max_waiting: int, now_s: float) -> dict[str, int]:
    """Rank of each of ``running``, and of the first ``max_waiting`` that are in ``waiting``: 0 goes first.

    No step admits more than there are slots, so later ones are not looked at. A request that the order leaves out has no rank.
    """
    names, left, walk, waits = list[str](), max_waiting, iter(order.order(now_s)), waiting.__contains__
    while left > 0 and (part := list(islice(walk, left))):
        names += part
        left -= sum(map(waits, part))
    placed = set(names)
    behind = [name for name in running if name not in placed]  # mostly in order already, as those of the last step are
    if behind:
        names += order.among(behind, now_s)
    return dict(zip(names, range(len(names)), strict=True))


def left_out(
    running: Mapping[str, int],
    waiting: Callable[[str], Waiting | None],
    ranks: Mapping[str, int],
    slots: int,
    free_blocks: int,
    tokens: float = math.inf,
    fresh: float = 1.0,
) -> frozenset[str]:
    """Those of ``running`` that leave their slot in this step to a request ranked before them; they keep their KV.

    ``running``: the tokens that each computes. ``waiting``: a waiting request by name; None: it does not wait. ``ranks``: in order of rank.
    ``tokens``: of the step. ``fresh``: share of a waiting request's tokens that it computes and does not find cached. A waiting request
    that finds no KV or no token beside those that stay takes no slot, and none behind it is admitted before it. A request without a rank
    has no turn.
    """
    stay = [name for name in ranks if name in running][:slots]
    left, taken = tokens - sum([running[name] for name in stay]), 0
    for name, rank in ranks.items():
        one = None if name in running else waiting(name)
        if one is None:
            continue
        is_full = len(stay) + taken >= slots
        if one.blocks > free_blocks or (is_full and (not stay or ranks[stay[-1]] < rank)):
            break
        left += running[stay[-1]] if is_full else 0
        if left <= 0:
            break
        if is_full:
            stay.pop()
        taken, free_blocks, left = taken + 1, free_blocks - one.blocks, left - max(1, round(fresh * one.tokens))
    return frozenset(running) - frozenset(stay)


def give_up(view: EngineView, ranks: Mapping[str, int]) -> tuple[int, ...]:
    """Places of the online requests that are preempted so that those ranked before them go on: the last rank first.

    Empty while offline work holds any KV, which goes first. The first rank is never preempted: it ends, whatever the others need.
    """
    running = view.running
    if sum([one.blocks_step for one in running]) <= view.free_blocks or any(one.offline for one in running):
        return ()
    order = sorted(range(len(running)), key=lambda place: ranks.get(running[place].name, len(ranks)))
    grows = _growing([running[place] for place in order], view)
    short, lost, frees = sum(grows) - view.free_blocks, list[int](), view.freeing()
    while short > 0 and len(order) > 1:
        short -= frees(running[order[-1]]) + grows.pop()
        lost.append(order.pop())
    return tuple(lost)


def _growing(ordered: Sequence[Running], view: EngineView) -> list[int]:
    """KV blocks that each request needs in this step, as far as slots and tokens go."""
    grows, tokens = list[int](), view.max_tokens
    for place, one in enumerate(ordered):
        has_turn = place < view.max_seqs and (tokens is None or tokens > 0)
        grows.append(one.blocks_step if has_turn else 0)
        tokens = None if tokens is None else tokens - one.step_tokens
    return grows
