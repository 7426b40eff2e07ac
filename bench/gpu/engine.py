"""The engines of the systems compared, each alone in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.gpu.extension import NAME
from bench.gpu.ground import Ground
from harvester.engine.launch.arguments import engine_arguments, without_harvester
from harvester.engine.shared.state import SharedState
from harvester.engine.vllm.client import HarvestLLM
from harvester.engine.vllm.launch import engine


@asynccontextmanager
async def harvester(
    ground: Ground, given: dict[str, Any], counts: Path | None = None, **sections: Any
) -> AsyncIterator[tuple[HarvestLLM, SharedState]]:
    """``given``: engine arguments; ``sections``: of harvester's config; ``counts``: file of `bench.tally`."""
    shared = SharedState.make()
    if counts is not None:
        kind = "CountedHarvest" if ground.cpu else "CountedAsyncHarvest"
        own = {"scheduler_cls": f"bench.counting_harvest.{kind}", "additional_config": {"bench_counts": str(counts)}}
        given = own | given
    config = ground.config(given, **sections)
    values = engine_arguments(config, ground.model, "bench", cpu=ground.cpu, embedded=False, shared=shared.path)
    async with engine(values | {"worker_extension_cls": NAME}, shared) as llm:
        yield llm, shared


@asynccontextmanager
async def stock(ground: Ground, given: dict[str, Any], policy: str, counts: Path | None = None) -> AsyncIterator[HarvestLLM]:
    """vLLM's own scheduler with ``policy`` fcfs or priority, and its own worker (on a CPU: one that waits as ours does)."""
    config = ground.config(given)
    values = without_harvester(engine_arguments(config, ground.model, "bench", cpu=ground.cpu, embedded=False))
    values |= {"scheduling_policy": policy, "worker_extension_cls": NAME}
    values |= {"worker_cls": "bench.patient.PatientWorker"} if ground.cpu else {}
    if counts is not None:
        kind = "CountedStock" if ground.cpu else "CountedAsyncStock"
        values |= {"scheduler_cls": f"bench.counting.{kind}", "additional_config": {"bench_counts": str(counts)}}
    async with engine(values) as llm:
        yield llm
