"""What offline work may take of one step, so that chat goes first: slots, KV blocks and tokens.

Reserve first: offline work is admitted only into what is left beside a reserve for arrivals, counting the KV it will hold when it ends.
Preempt second: an offline request is thrown out only when an online arrival would otherwise find no slot or no KV. The token share
beside online work is fixed here; an SLO-aware budget takes its place behind the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """See `harvester.config.ShareConfig`."""

    reserved_slots: int
    reserved_kv: float
    offline_step_tokens: int
    reserve_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """One request in the batch. ``step_tokens``: what it would compute in this step if nothing bounded it."""

    offline: bool
    step_tokens: int
    blocks_now: int
    blocks_final: int
    blocks_step: int  # KV blocks it must get before it can run this step


@dataclass(frozen=True, slots=True)
class View:
    """What the scheduler holds before a step. Requests are named by their place in ``running``, oldest first."""

    running: Sequence[Running]
    online_waiting: int
    online_waiting_blocks: int  # KV blocks that the waiting online prompts need
    offline_next_blocks: int  # KV blocks that the first waiting offline request holds when it ends; 0 where none waits
    free_blocks: int
    total_blocks: int
    max_seqs: int
    online_idle_s: float = 0.0  # since the last online request ended; 0 while one is there


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in the step. The indices are places in ``View.running``; ``run``, ``pause`` and ``preempt`` part them."""

    run: tuple[int, ...]  # in this order
    pause: tuple[int, ...]  # left out of this step, KV kept
    preempt: tuple[int, ...]  # KV freed
    budget_tokens: int | None  # of the whole step; None: the engine's own bound
    offline_slots: int  # offline requests that may be admitted
    offline_blocks: int  # KV blocks, at their end, that those may take together


def plan_step(view: View, limits: Limits) -> Plan:
    """Plan one step; O(running)."""
    preempt = _victims(view)
    kept = [i for i in range(len(view.running)) if i not in preempt]
    online = [i for i in kept if not view.running[i].offline]
    decodes = [i for i in kept if view.running[i].offline and view.running[i].step_tokens <= 1]
    prefills = [i for i in kept if view.running[i].offline and view.running[i].step_tokens > 1]
    if not online and view.online_waiting == 0:
        slots, blocks = _room(view, limits)
        return Plan(tuple(kept), (), (), None, slots, blocks)
    if view.online_waiting:  # its prompt takes what the step can hold; offline prompts wait a step
        fit = decodes[: limits.offline_step_tokens]
        pause = (*decodes[len(fit) :], *prefills)
        return Plan((*online, *fit), pause, tuple(sorted(preempt)), None, 0, 0)
    budget = sum(view.running[i].step_tokens for i in online) + limits.offline_step_tokens
    slots, blocks = _room(view, limits)
    return Plan((*online, *decodes, *prefills), (), (), budget, slots, blocks)


def _room(view: View, limits: Limits) -> tuple[int, int]:
    """Slots and KV blocks that new offline requests may take. An idle engine always takes one, however large.

    Where no chat has come for ``reserve_s`` nothing is kept back: the first arrival then evicts, and the reserve is there for the next.
    """
    kept = limits if view.online_idle_s <= limits.reserve_s else Limits(0, 0.0, limits.offline_step_tokens)
    slots = view.max_seqs - kept.reserved_slots - len(view.running)
    growth = sum(max(0, r.blocks_final - r.blocks_now) for r in view.running if r.offline)
    blocks = view.free_blocks - growth - int(kept.reserved_kv * view.total_blocks)
    least = (0, 0) if view.running else (1, view.offline_next_blocks)
    return max(slots, least[0]), max(blocks, least[1])


def _victims(view: View) -> frozenset[int]:
    """The newest offline requests, as many as the waiting online ones lack slots or blocks."""
    slots = view.online_waiting - (view.max_seqs - len(view.running))
    # Those that run take their blocks first: an engine that lacks one of them for a running request admits nobody in that step.
    growth = [r.blocks_step if not r.offline or r.step_tokens <= 1 else 0 for r in view.running]
    blocks = view.online_waiting_blocks + sum(growth) - view.free_blocks
    chosen: set[int] = set()
    for i in reversed(range(len(view.running))):
        if view.online_waiting == 0 or (slots <= 0 and blocks <= 0):
            break
        if view.running[i].offline:
            chosen.add(i)
            slots -= 1
            blocks -= view.running[i].blocks_now + growth[i]
    return frozenset(chosen)
