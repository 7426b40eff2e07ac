"""Who loses KV when the requests that run need more blocks than are free: an answer has become longer than was expected.

vLLM would find out in the middle of the step, take the newest request by its arrival, and admit nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from harvester.policy.step.view import StepPlan
from harvester.policy.view import Running


def short_of_kv(running: Sequence[Running], step: StepPlan, free_blocks: int, max_tokens: int | None, block_tokens: int) -> tuple[int, ...]:
    """Offline requests, by their places, that give up their KV so that the others can run: the newest first, as many as are needed.

    ``free_blocks``: when those that the plan preempts already have given up theirs. ``max_tokens``: of any step; None: not known.

    Nobody waits for ever. The oldest request that runs gives way to no other row, so that it makes a token in each step that it is in, and
    ends; then the next one is the oldest. A row that gave way keeps the tokens it has made, and is admitted before those that never ran.
    """
    if free_blocks >= len(step.run) and all(running[place].step_tokens <= 1 for place in step.run):
        return ()  # a decode needs one block at most
    needs = _needs(running, step, max_tokens, block_tokens)
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
        short -= running[newest].blocks_now + needs.get(newest, 0)
    return tuple(lost)


def _needs(running: Sequence[Running], step: StepPlan, max_tokens: int | None, block_tokens: int) -> dict[int, int]:
    """KV blocks that each request in the step must get; a prompt as far as the step has tokens for it, in the order of the step."""
    bounds = [bound for bound in (max_tokens, step.budget_tokens) if bound is not None]
    left = min(bounds) if bounds else None
    needs: dict[int, int] = {}
    for place in step.run:
        one = running[place]
        tokens = one.step_tokens if left is None else min(one.step_tokens, left)
        if left is not None:
            left -= tokens
        needs[place] = -(-(one.context + tokens) // block_tokens) - one.blocks_now if tokens else 0
    return needs
