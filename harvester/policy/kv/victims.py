"""The order in which requests lose their KV, and the victims of a step.

Offline work gives way to online work. Among offline requests the one that loses least gives way first, the newest of equals; among online
requests the one whose turn comes last. Checkpoints cover requests in the same order (FastServe 4.2, ConServe 4.4).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from harvester.policy.step.batch import Batch
from harvester.policy.step.view import StepView


def in_order_of_loss(names: Sequence[str], offline: Container[str], ranks: Mapping[str, int]) -> list[int]:
    """Places in ``names`` (running requests, oldest first), in the order in which they would lose their KV.

    Those in ``offline`` come first, newest first; then the online ones, the last in their order first.
    """
    rows = [place for place in range(len(names) - 1, -1, -1) if names[place] in offline]
    online = [place for place in range(len(names)) if names[place] not in offline]
    return rows + sorted(online, key=lambda place: -ranks.get(names[place], 0))


def victims(view: StepView, batch: Batch) -> frozenset[int]:
    """Places of the offline requests to preempt, until the waiting online ones have slots and blocks: least loss first, then the newest.

    A request's loss is its unsaved blocks beyond the few that the step waits for. ``batch``: `batch_of` all running requests.
    """
    if view.online_waiting == 0 or not (batch.decodes or batch.prefills):
        return frozenset()
    running = view.running
    slots = view.online_waiting - (view.max_seqs - len(running))
    # Running requests take their blocks first: an engine that lacks a block for one of them admits nobody in that step.
    blocks = view.online_waiting_blocks + batch.step_blocks - view.free_blocks
    if slots <= 0 and blocks <= 0:
        return frozenset()
    chosen, frees = set[int](), view.freeing()
    rows = sorted([*batch.decodes, *batch.prefills], reverse=True)
    for place in sorted(rows, key=lambda place: max(0, running[place].unsaved - view.max_waited)):
        if slots <= 0 and blocks <= 0:
            break
        one = running[place]
        chosen.add(place)
        slots -= 1
        blocks -= frees(one) + (one.blocks_step if one.step_tokens <= 1 else 0)
    return frozenset(chosen)
