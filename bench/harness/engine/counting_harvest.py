"""harvester's schedulers with a `bench.harness.engine.tally` of what they schedule. Imported in the engine core by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from vllm.v1.core.sched.output import SchedulerOutput

from bench.harness.engine.counting import Counting, computed_before
from harvester.engine.vllm.core import reads
from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler


class Costing(Counting):
    """Prices recomputed tokens by the latency model: the step's time less that of the same step without them."""

    def cost_s(self, output: SchedulerOutput, again: dict[str, int]) -> float:
        model, before = self._brain.parts.model, computed_before(self, output)  # type: ignore[attr-defined]
        new = {name: tokens - again.get(name, 0) for name, tokens in output.num_scheduled_tokens.items()}
        rest = cast(SchedulerOutput, SimpleNamespace(num_scheduled_tokens={name: tokens for name, tokens in new.items() if tokens}))
        rest_s = model.median_s(reads.load_of(rest, {name: count + again.get(name, 0) for name, count in before.items()})) or 0.0
        whole_s: float = model.median_s(reads.load_of(output, before)) or 0.0
        return max(0.0, whole_s - rest_s) if rest.num_scheduled_tokens else whole_s


class CountedHarvest(Costing, HarvestScheduler):
    """On a CPU."""


class CountedAsyncHarvest(Costing, AsyncHarvestScheduler):
    """On a GPU."""
