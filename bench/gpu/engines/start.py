"""The engines of the systems compared, each alone in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.gpu.engines.extension import NAME
from bench.gpu.run_config import RunConfig
from harvester.engine.launch.arguments import engine_arguments, without_harvester
from harvester.engine.shared.state import SharedState
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.launch import engine


@asynccontextmanager
async def harvester(
    run_config: RunConfig, given: dict[str, Any], counts: Path | None = None, **sections: Any
) -> AsyncIterator[tuple[HarvestLLM, SharedState]]:
    """``given``: engine arguments; ``sections``: of harvester's config; ``counts``: file of `bench.harness.engine.tally`."""
    shared = SharedState.make()
    if counts is not None:
        kind = "CountedHarvest" if run_config.cpu else "CountedAsyncHarvest"
        own = {"scheduler_cls": f"bench.harness.engine.counting_harvest.{kind}", "additional_config": {"bench_counts": str(counts)}}
        given = own | given
    config = run_config.config(given, **sections)
    values = engine_arguments(config, run_config.model, "bench", cpu=run_config.cpu, embedded=False, shared=shared.path)
    async with engine(values | {"worker_extension_cls": NAME}, shared) as llm:
        yield llm, shared


@asynccontextmanager
async def stock(run_config: RunConfig, given: dict[str, Any], policy: str, counts: Path | None = None) -> AsyncIterator[HarvestLLM]:
    """vLLM's own scheduler with ``policy`` fcfs or priority, and its own worker (on a CPU: one that waits as ours does)."""
    config = run_config.config(given)
    values = without_harvester(engine_arguments(config, run_config.model, "bench", cpu=run_config.cpu, embedded=False))
    values |= {"scheduling_policy": policy, "worker_extension_cls": NAME}
    values |= {"worker_cls": "bench.harness.engine.patient.PatientWorker"} if run_config.cpu else {}
    if counts is not None:
        kind = "CountedStock" if run_config.cpu else "CountedAsyncStock"
        values |= {"scheduler_cls": f"bench.harness.engine.counting.{kind}", "additional_config": {"bench_counts": str(counts)}}
    async with engine(values) as llm:
        yield llm
