"""vLLM's schedulers with a `tally` of what they schedule and a `step_record` beside it. Imported in the engine core by name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from bench.harness.engine.step_record import StepRecord
from bench.harness.engine.tally import Tally
from harvester.engine.shared.steporder import ENDED_EARLY
from harvester.engine.vllm.core import reads
from harvester.engine.vllm.platform import additional, sleep_between_looks

KEY = "bench_counts"  # in vLLM's additional_config: the file of the tally; that of the record ends in ``.steps``


if TYPE_CHECKING:
    Stock = Scheduler
else:
    Stock = object  # a class with this mixin names one of vLLM's schedulers as its next base


class Counting(Stock):
    """Mixed into a scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        counts = Path(additional(self.vllm_config)[KEY])
        self._tally, self._record = Tally(counts), StepRecord(counts.with_suffix(".steps"))
        self._record.engine(self.kv_cache_manager.block_pool.num_gpu_blocks, self.block_size)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        now_s = time.monotonic()
        again = self._tally.count(output.num_scheduled_tokens, self.requests, now_s)
        if again:
            self._tally.cost(self.cost_s(output, again))
        load = reads.load_of(output, computed_before(self, output))
        self._record.planned(load, {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}, now_s, sum(again.values()))
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        self._record.answered(time.monotonic(), bool(getattr(model_runner_output, ENDED_EARLY, False)))
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._record.ended(request, reads.is_offline(request), time.monotonic())
        return super()._free_request(request, *args, **kwargs)

    def cost_s(self, output: SchedulerOutput, again: dict[str, int]) -> float:
        """Seconds of the step spent on tokens computed ``again``; 0 if unknown."""
        return 0.0


class CountedStock(Counting, Scheduler):
    """vLLM's own synchronous scheduler. On a CPU its process waits as harvester's does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current_platform.is_cpu():
            sleep_between_looks()
        super().__init__(*args, **kwargs)


class CountedAsyncStock(Counting, AsyncScheduler):
    """vLLM's own on a GPU."""


def computed_before(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, int]:
    """Tokens of each request in the last planned step that were computed before it. Requests that are gone are left out."""
    found = ((name, scheduler.requests.get(name), tokens) for name, tokens in output.num_scheduled_tokens.items())
    return {name: request.num_computed_tokens - tokens for name, request, tokens in found if request is not None}
