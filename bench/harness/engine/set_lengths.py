"""Schedulers whose answers end after as many tokens as each request says, whatever the model would have answered.

The model computes every token; the last one is replaced by the one that ends the answer. Imported in the engine core by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler

from bench.harness.engine.counting import CountedStock
from bench.harness.engine.counting_harvest import CountedHarvest
from harvester.engine.vllm.core import reads

ANSWER_ARG = "answer_tokens"  # of a request's extra arguments
STOP = 3  # the token that ends an answer, which a request must name as such

if TYPE_CHECKING:
    Stock = Scheduler
else:
    Stock = object  # one of vLLM's schedulers comes behind the mixin


class SetLengths(Stock):
    """Mixed into a synchronous scheduler: with asynchronous ones a token is used before it is known here."""

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        for place, name in enumerate(model_runner_output.req_ids):
            request = self.requests.get(name)
            if request is None or not model_runner_output.sampled_token_ids[place]:
                continue
            wanted = reads.extra_of(request).get(ANSWER_ARG)
            if wanted is not None and request.num_output_tokens + 1 >= wanted:
                model_runner_output.sampled_token_ids[place] = [STOP]
        return super().update_from_output(scheduler_output, model_runner_output)


class SetStock(SetLengths, CountedStock):
    """vLLM's own."""


class SetHarvest(SetLengths, CountedHarvest):
    """harvester's."""
