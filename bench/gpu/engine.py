"""The engines of the systems compared, each alone in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.gpu.extension import NAME
from bench.gpu.ground import Ground
from harvester.engine.arguments import engine_arguments
from harvester.engine.board import Board
from harvester.engine.llm import HarvestLLM
from harvester.engine.start import engine, without_harvester


@asynccontextmanager
async def harvester(
    ground: Ground, given: dict[str, Any], counts: Path | None = None, **sections: Any
) -> AsyncIterator[tuple[HarvestLLM, Board]]:
    """``given``: engine arguments; ``sections``: of harvester's config; ``counts``: file of `bench.tally`."""
    board = Board.make()
    if counts is not None:
        kind = "CountedHarvest" if ground.cpu else "CountedAsyncHarvest"
        own = {"scheduler_cls": f"bench.counting_harvest.{kind}", "additional_config": {"bench_counts": str(counts)}}
        given = own | given
    config = ground.config(given, **sections)
    values = engine_arguments(config, ground.model, "bench", cpu=ground.cpu, embedded=False, board=board.path)
    async with engine(values | {"worker_extension_cls": NAME}, board) as llm:
        yield llm, board


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
