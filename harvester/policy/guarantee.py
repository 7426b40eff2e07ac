"""The minimum share of the engine that jobs near their deadline are guaranteed, laid over the plan of a step.

Chat stays first: the share opens the room that is kept back for bursts of arrivals, as far as nobody holds it, and an arrival that
finds none still evicts. Only where the deployment says so (`above_slo`) does a step last longer than the promise to chat allows, so that
offline work has its share of the step's time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harvester.policy.view import Plan, View


def stretched_s(limit_s: float, view: View, online_s: float) -> float:
    """Seconds that the step may last, which the chat in it alone would last ``online_s``."""
    given = view.guarantee
    return max(limit_s, online_s / (1.0 - given.share)) if given is not None and given.above_slo else limit_s


def opened(plan: Plan, view: View) -> Plan:
    """The plan with at least the share's slots and blocks open to offline work; as it is while an online request waits."""
    if view.guarantee is None or view.online_waiting:
        return plan
    share, offline = view.guarantee.share, [item for item in view.running if item.offline]
    growth = sum(max(0, item.blocks_final - item.blocks_now) for item in offline)
    slots = min(view.max_seqs - len(view.running), math.ceil(share * view.max_seqs) - len(offline))
    held = sum(max(item.blocks_final, item.blocks_now) for item in offline)
    blocks = min(view.free_blocks - growth, math.ceil(share * view.total_blocks) - held)
    return replace(plan, offline_slots=max(plan.offline_slots, slots), offline_blocks=max(plan.offline_blocks, blocks))
