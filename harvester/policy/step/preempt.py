"""Layer-wise preemption: when a running step is ended for an arrival, and how dense its safepoints are (ConServe Algorithm 2, 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EARLY_SHARE = 0.15  # of a step with chat: ended within this share, it loses little
END_GAIN = 2.5  # minimum time left of such a step, in times of a step's fixed cost
PLANNED_SLOWDOWN = 0.8  # share of chat's allowed slowdown that is planned: longer steps also have more chat in them
COST_SHARE = 0.01  # share of a step that its safepoints may cost


@dataclass(frozen=True, slots=True)
class Flight:
    """One step that was sent to the workers and is not answered yet. Times in seconds of one monotonic clock."""

    number: int
    endable: bool  # it has safepoints, and holds no online prompt
    began_s: float | None  # None: it waits for the step before it
    estimate_s: float  # how long it takes; 0: unknown
    beside_chat: bool = False  # online requests decode in it
    tpot_s: float = math.inf  # strictest TPOT SLO of those


@dataclass(frozen=True, slots=True)
class Arrival:
    """An online request that has just come.

    ``prompt_s``: P99 time of a step that computes its whole prompt. ``waited_s``: since it reached the server.
    ``max_ttft_delay_fraction``: share of ``ttft_slo_s`` that it may wait for steps of offline work.
    ``step_s``: fixed cost of a step, without its tokens. ``max_slowdown``: bound without a TTFT SLO. Its wait for offline work plus its own
    step may take so many times ``alone_s``: the expected time of that step, without what is found in the prefix cache.
    """

    prompt_s: float
    ttft_slo_s: float
    waited_s: float = 0.0
    max_ttft_delay_fraction: float = 1.0
    step_s: float = 0.0
    max_slowdown: float | None = None
    alone_s: float = 0.0

    def is_in_time(self, wait_s: float) -> bool:
        """Whether it can wait ``wait_s`` more for the steps before its own.

        `max_ttft_delay_fraction` protects later arrivals: one that has time to wait may be the first of a burst, whose last then lacks it.
        """
        if self.ttft_slo_s == math.inf:
            return self.max_slowdown is None or wait_s <= (self.max_slowdown - 1.0) * self.alone_s
        return wait_s <= self.max_ttft_delay_fraction * self.ttft_slo_s and self.waited_s + wait_s + self.prompt_s <= self.ttft_slo_s


def first_to_end(steps: Sequence[Flight], now_s: float, arrival: Arrival) -> int | None:
    """Number of the step to end, so that the arrival's first token is in time; None where all may run to their ends.

    ``steps``: oldest first. Ending one makes those behind it void. Of the steps whose end lets the arrival be in time, the last is
    chosen, since that loses least; where there is none, the first that can be ended.

    ConServe takes victims out of the running batch one by one; a batch inside a layer cannot be cut, so here all of it ends.
    """
    waits_s = _waits_s(steps, now_s)
    if not steps or arrival.is_in_time(waits_s[-1]):
        return None
    endable = [place for place, step in enumerate(steps) if step.endable and _may_lose(step, now_s, arrival)]
    in_time = [place for place in endable if arrival.is_in_time(waits_s[place])]
    chosen = in_time[-1] if in_time else min(endable, default=None)
    return None if chosen is None else steps[chosen].number


def wait_of_steps_s(steps: Sequence[Flight], now_s: float) -> float:
    """How long an arrival waits if all of ``steps`` run to their ends; 0 without any."""
    return _waits_s(steps, now_s)[-1] if steps else 0.0


def _may_lose(step: Flight, now_s: float, arrival: Arrival) -> bool:
    """Whether the step may be ended, and its work lost. Chat that decodes in it then gets its next token only from the step after it.

    A step with chat may be ended early in it, or later if both steps together meet the TPOT SLO; and only while the time left is well above
    a step's fixed cost.
    """
    if not step.beside_chat:
        return True
    ran_s = max(0.0, now_s - step.began_s) if step.began_s is not None else 0.0
    if step.estimate_s - ran_s < END_GAIN * arrival.step_s:
        return False
    return ran_s < EARLY_SHARE * step.estimate_s or ran_s + arrival.prompt_s <= step.tpot_s


def _waits_s(steps: Sequence[Flight], now_s: float) -> list[float]:
    """Seconds until each step begins, and until the last one ends. A step of unknown length counts as endless if it can be ended."""
    waits_s, at_s = [], now_s
    for place, step in enumerate(steps):
        waits_s.append(at_s - now_s)
        unknown_s = math.inf if step.endable else 0.0
        began_s = at_s if place or step.began_s is None else step.began_s  # a step behind another was launched, but has not begun
        at_s = max(at_s, began_s + (step.estimate_s if step.estimate_s > 0.0 else unknown_s))
    return [*waits_s, at_s - now_s]


def best_step_s(fixed_s: float, gap_s: float) -> float:
    """How long a step of offline work alone should be where an arrival comes every ``gap_s`` and ends the step it meets.

    A step costs ``fixed_s`` beside its tokens, and one that ends early loses half of itself on average. The sum of both shares,
    fixed / step + step / (2 gap), is least at sqrt(2 fixed gap). It is Young's interval between two checkpoints (CACM 17(9), 1974).
    """
    return math.sqrt(2.0 * fixed_s * gap_s) if gap_s < math.inf else math.inf


def detect_s(max_slowdown: float, prefill_s: float) -> float:
    """How long a step of offline work may run on after the signal, where a first token may take ``max_slowdown`` times as long as alone.

    An arrival comes at a random point of the stretch between two safepoints, and waits for half a stretch on average. That half may use up
    the planned slowdown of a first token, whose own prompt takes ``prefill_s``.
    """
    return 2.0 * PLANNED_SLOWDOWN * (max_slowdown - 1.0) * prefill_s


def layers_between(layers: int, step_s: float, safepoint_s: float, detect_s: float, segments: int = 1) -> int:
    """Number of layers from one safepoint to the next.

    All safepoints together cost under 1% of the step. Where the host does not run ahead of the computation, there are as many as that
    allows: an arrival then waits for half a layer. Elsewhere each one also drains the device's queue, so there are only as many as end the
    step within ``detect_s`` of the signal; where both bounds cannot be met, the cost wins. ``safepoint_s``: cost of one.

    ``segments``: maximum stretches between safepoints that still run after the signal: the one being computed and those between decision
    and end; on a device that runs behind its host also the queued one.
    """
    if layers < 1 or step_s <= 0.0:
        return 1
    for_cost = -int(-safepoint_s * layers / (COST_SHARE * step_s) // 1)
    for_time = int(detect_s * layers / (step_s * segments)) if segments > 1 else 1
    return min(layers, max(1, for_cost, for_time))
