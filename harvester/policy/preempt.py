"""When a running step of offline work is ended for an arrival, and how dense its safepoints are (ConServe Algorithm 2, 4.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

COST_SHARE = 0.01  # of a step, what its safepoints may cost


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The step that runs when a request arrives. Times in seconds of one monotonic clock; ``estimate_s`` 0: unknown."""

    offline_only: bool
    began_s: float
    estimate_s: float


def must_end(step: RunningStep, now_s: float, prompt_s: float, ttft_slo_s: float, waited_s: float = 0.0, intrusion: float = 1.0) -> bool:
    """Whether an arrival would miss its first token's time, or wait more than ``intrusion`` of it, if the step ran to its end.

    ``prompt_s``: how long the step takes that will compute the arrival's prompt; ``waited_s``: since it reached the server. The share is
    for those behind it: an arrival that has time to wait may be the first of a burst, whose last one then lacks that time. Only a step of
    offline work alone can be ended: beside online work the budget bounds the step. ConServe takes victims out of the running batch one by
    one; a batch inside a layer cannot be cut, so here all of it ends. A step whose length is unknown is ended.
    """
    if not step.offline_only:
        return False
    if step.estimate_s <= 0.0:
        return True
    remaining_s = max(0.0, step.began_s + step.estimate_s - now_s)
    return remaining_s > intrusion * ttft_slo_s or waited_s + remaining_s + prompt_s > ttft_slo_s


def best_step_s(fixed_s: float, gap_s: float) -> float:
    """How long a step of offline work alone should be where an arrival comes every ``gap_s`` and ends the step it meets.

    A step costs ``fixed_s`` beside its tokens, and one that ends early loses half of itself on average: the sum of both shares,
    fixed / step + step / (2 gap), is least at sqrt(2 fixed gap). It is Young's interval between two checkpoints (CACM 17(9), 1974).
    """
    return math.sqrt(2.0 * fixed_s * gap_s) if gap_s < math.inf else math.inf


def layers_between(layers: int, step_s: float, safepoint_s: float, detect_s: float, ahead: int) -> int:
    """Every how many layers a step has a safepoint.

    Few enough that all of them cost under 1% of the step, many enough that the step ends within ``detect_s`` of being asked; where both
    cannot be had, the cost wins. ``safepoint_s``: what one costs; ``ahead``: safepoints between decision and end.
    """
    if layers < 1 or step_s <= 0.0:
        return 1
    for_cost = safepoint_s * layers / (COST_SHARE * step_s)
    for_time = detect_s * layers / (step_s * (1 + ahead))
    return min(layers, max(1, -int(-for_cost // 1), int(for_time)))
