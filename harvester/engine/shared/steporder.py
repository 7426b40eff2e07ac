"""What the scheduler and the workers tell each other about a step, as extra attributes of vLLM's own messages."""

from __future__ import annotations

from typing import NamedTuple

SAFEPOINTS_KEY = "harvester_safepoints"  # in vLLM's `additional_config`
ORDER = "harvest"  # attribute of the `SchedulerOutput` of a step with tokens: its `Order`
ENDED_EARLY = "ended_early"  # attribute of the `ModelRunnerOutput` of a step that ended early, or is void
STEP_SECONDS = "step_seconds"  # attribute of the `ModelRunnerOutput` of a step that was timed


class Order(NamedTuple):
    """What the scheduler tells the workers about a step. ``every``: layers from one safepoint to the next; 0: it may not end early.

    A step with the same ``epoch`` as one that ended early was planned before the scheduler knew of that end: it is void.
    """

    number: int
    every: int
    epoch: int
