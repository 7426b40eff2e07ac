"""harvester's schedulers with another online order for each run, and answers of unknown length. Imported by name.

One engine serves all orders, so that it starts once and all run on the same machine. A request's `OrderArgs` hold the length of its answer.
It becomes ``max_tokens`` once the brain knows the request with a much larger value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.harness.engine.counting_harvest import CountedAsyncHarvest, CountedHarvest
from bench.harness.load.order_args import OrderArgs
from harvester.engine.vllm.core import reads
from harvester.engine.vllm.core.scheduler import HarvestScheduling
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import parts_of

if TYPE_CHECKING:
    Scheduler = HarvestScheduling
else:
    Scheduler = object


class Ordering(Scheduler):
    """Mixed into a scheduler."""

    _order: str | None = None

    def add_request(self, request: Any) -> None:
        told = OrderArgs.of(reads.extra_of(request))
        if told is not None and told.order != self._order and not self._brain.online:
            self._order = told.order
            config = replace(self._settings.parts(reads.kv_blocks(self.kv_cache_manager.block_pool)), online_order=told.order)
            self._brain.parts.online = parts_of(config, self._brain.parts.model).online
        super().add_request(request)
        if told is not None:
            request.max_tokens = told.output_tokens

    def _online_request(self, request: Any, shift_s: float) -> OnlineRequest:
        new, told = super()._online_request(request, shift_s), OrderArgs.of(reads.extra_of(request))
        if told is None:
            return new
        due_s = request.arrival_time + shift_s + told.ttft_s
        return replace(new, expected_tokens=told.expected_tokens or None, due_s=due_s, tpot_s=told.tpot_s)


class OrderedHarvest(Ordering, CountedHarvest):
    """On a CPU."""


class OrderedAsyncHarvest(Ordering, CountedAsyncHarvest):
    """On a GPU."""
