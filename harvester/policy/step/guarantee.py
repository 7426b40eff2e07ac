"""The minimum share of the engine that jobs near their deadline are guaranteed, applied to the plan of a step.

Chat stays first: the guarantee may use reserved slots and KV that are free now, and an arrival that finds none still preempts. Only with
`above_slo` may a step exceed the SLO, so that offline work has its share of the step's time.
"""

from __future__ import annotations

import math

from harvester.policy.step.batch import Batch
from harvester.policy.step.view import StepView


def stretched_s(limit_s: float, view: StepView, online_s: float) -> float:
    """Seconds that the step may last: ``limit_s``, or more with `above_slo`. ``online_s``: time of its chat alone."""
    given = view.guarantee
    return max(limit_s, online_s / (1.0 - given.share)) if given is not None and given.above_slo else limit_s


def opened(space: tuple[int, int], view: StepView, batch: Batch, free_blocks: int, held_blocks: int) -> tuple[int, int]:
    """``space`` (slots and KV blocks that new offline requests may take), raised to what the guaranteed share still lacks.

    ``free_blocks`` and ``held_blocks``: KV blocks that are free, and that offline requests hold, as their admission counts them.
    """
    if view.guarantee is None:
        return space
    share, offline = view.guarantee.share, len(batch.decodes) + len(batch.prefills)
    slots = min(view.max_seqs - len(view.running), math.ceil(share * view.max_seqs) - offline)
    blocks = min(free_blocks, math.ceil(share * view.total_blocks) - held_blocks)
    return max(space[0], slots), max(space[1], blocks)
