"""harvester's schedulers under another order for each run, with answers whose length only their end tells. Imported by name.

One engine for all orders: it starts once, and all orders get the same machine. The length of an answer is what a request's `Told` says,
set when the brain has been told of the request with its much larger ``max_tokens``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from bench.harness.engine.counting_harvest import CountedAsyncHarvest, CountedHarvest
from harvester.engine.vllm.core import reads
from harvester.engine.vllm.core.scheduler import HarvestScheduling
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import parts_of

PREFIX = "bench_"


@dataclass(frozen=True, slots=True)
class Told:
    """What a request says to these schedulers. ``expected_tokens``: of its answer, as predicted from outside; 0: nothing was."""

    order: str
    output_tokens: int
    expected_tokens: int
    ttft_s: float
    tpot_s: float

    def to_args(self) -> dict[str, str | int | float]:
        """Its ``vllm_xargs``."""
        return {PREFIX + name: value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, request: Any) -> Self | None:
        """None: it says nothing."""
        given = {name.removeprefix(PREFIX): value for name, value in reads.extra_of(request).items() if name.startswith(PREFIX)}
        return cls(**given) if given else None


if TYPE_CHECKING:
    Scheduler = HarvestScheduling
else:
    Scheduler = object


class Ordering(Scheduler):
    """Mixed into a scheduler."""

    _order: str | None = None

    def add_request(self, request: Any) -> None:
        told = Told.of(request)
        if told is not None and told.order != self._order and not self._brain.online:
            self._order = told.order
            config = replace(self._settings.parts(reads.kv_blocks(self.kv_cache_manager.block_pool)), online_order=told.order)
            self._brain.parts.online = parts_of(config, self._brain.parts.model).online
        super().add_request(request)
        if told is not None:
            request.max_tokens = told.output_tokens

    def _online_request(self, request: Any, shift_s: float) -> OnlineRequest:
        new, told = super()._online_request(request, shift_s), Told.of(request)
        if told is None:
            return new
        due_s = request.arrival_time + shift_s + told.ttft_s
        return replace(new, expected_tokens=told.expected_tokens or None, due_s=due_s, tpot_s=told.tpot_s)


class OrderedHarvest(Ordering, CountedHarvest):
    """On a CPU."""


class OrderedAsyncHarvest(Ordering, CountedAsyncHarvest):
    """On a GPU."""
