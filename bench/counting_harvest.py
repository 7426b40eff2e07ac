"""harvester's schedulers with a `bench.tally` of what they schedule. Imported in the engine core by name."""

from __future__ import annotations

from bench.counting import Counting
from harvester.engine.scheduler import AsyncHarvestScheduler, HarvestScheduler


class CountedHarvest(Counting, HarvestScheduler):
    """On a CPU."""


class CountedAsyncHarvest(Counting, AsyncHarvestScheduler):
    """On a GPU."""
