"""What scheduler and workers tell each other of a step, as attributes of vLLM's own messages."""

from __future__ import annotations

from typing import NamedTuple

SAFEPOINTS_KEY = "harvester_safepoints"  # in vLLM's `additional_config`
ORDER = "harvest"  # attribute of the `SchedulerOutput` of a step with tokens: its `Order`
ENDED_EARLY = "ended_early"  # attribute of the `ModelRunnerOutput` of a step that counts for nothing
STEP_SECONDS = "step_seconds"  # attribute of the `ModelRunnerOutput` of a step that was timed


class Order(NamedTuple):
    """What the scheduler tells the workers of a step. ``every``: at every how many layers it may end; 0: it may not.

    A step whose ``epoch`` is that of an ended step was planned before the scheduler knew of that end: it is void.
    """

    number: int
    every: int
    epoch: int
