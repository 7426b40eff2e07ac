"""vLLM's schedulers with a `bench.harness.engine.tally` of what they schedule. Imported in the engine core by name (``scheduler_cls``)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from bench.harness.engine.tally import Tally
from harvester.engine.vllm.platform import additional, sleep_between_looks

KEY = "bench_counts"  # in vLLM's additional_config: the file


if TYPE_CHECKING:
    Stock = Scheduler
else:
    Stock = object  # one of vLLM's schedulers comes behind the mixin


class Counting(Stock):
    """Mixed into a scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tally = Tally(Path(additional(self.vllm_config)[KEY]))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        again = self._tally.count(output.num_scheduled_tokens, self.requests, time.monotonic())
        if again:
            self._tally.cost(self.cost_s(output, again))
        return output

    def cost_s(self, output: SchedulerOutput, again: dict[str, int]) -> float:
        """Seconds of the step that go into computing tokens ``again``; 0 where nobody can tell."""
        return 0.0


class CountedStock(Counting, Scheduler):
    """vLLM's own, synchronous, as it is on a CPU, where it waits between its processes as harvester does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current_platform.is_cpu():
            sleep_between_looks()
        super().__init__(*args, **kwargs)


class CountedAsyncStock(Counting, AsyncScheduler):
    """vLLM's own on a GPU."""
