"""Slots and KV blocks: what offline work may take beside the reserve, and who gives way to an arrival that finds none."""

from __future__ import annotations

from harvester.policy.step.batch import Batch
from harvester.policy.view import PolicyConfig, View


def room(view: View, batch: Batch, limits: PolicyConfig) -> tuple[int, int]:
    """Slots and KV blocks that new offline requests may take. An idle engine always takes one, however large.

    Where no chat has come for ``reserve_s`` nothing is kept back: the first arrival then evicts, and the reserve is there for the next.
    """
    kept_slots, kept_blocks = reserve(view, limits) if view.online_idle_s <= limits.reserve_s else (0, 0)
    slots = view.max_seqs - kept_slots - len(view.running)
    blocks = view.free_blocks - batch.growth_blocks - view.loading_growth - kept_blocks
    least = (0, 0) if view.running else (1, view.offline_next_blocks)
    return max(slots, least[0]), max(blocks, least[1])


def reserve(view: View, limits: PolicyConfig) -> tuple[int, int]:
    """Slots and KV blocks kept for arrivals. Bursts get at most half of the engine: beyond that, evicting is the cheaper way."""
    if view.reserve is None:
        return limits.reserved_slots, int(limits.reserved_kv * view.total_blocks)
    slots, blocks = view.reserve
    return min(slots, view.max_seqs // 2), min(blocks, view.total_blocks // 2)


def victims(view: View) -> frozenset[int]:
    """Offline requests, as many as the waiting online ones lack slots or blocks: who loses least first, of equal ones the newest."""
    if view.online_waiting == 0:
        return frozenset()
    slots = view.online_waiting - (view.max_seqs - len(view.running))
    # Those that run take their blocks first: an engine that lacks one of them for a running request admits nobody in that step.
    growth = [r.blocks_step if not r.offline or r.step_tokens <= 1 else 0 for r in view.running]
    blocks = view.online_waiting_blocks + sum(growth) - view.free_blocks
    if slots <= 0 and blocks <= 0:
        return frozenset()
    chosen: set[int] = set()
    for i in sorted(range(len(view.running) - 1, -1, -1), key=lambda i: view.running[i].unsaved):
        if slots <= 0 and blocks <= 0:
            break
        if view.running[i].offline:
            chosen.add(i)
            slots -= 1
            blocks -= view.running[i].blocks_now + growth[i]
    return frozenset(chosen)
