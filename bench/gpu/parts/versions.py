"""Part ``versions``: what is installed, and what vLLM chose for harvester and for itself."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.gpu.engines.start import harvester, stock
from bench.gpu.part import Found, Part
from bench.gpu.run_config import RunConfig
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.vllm.frontend.client import HarvestLLM


def _ours(run_config: RunConfig, found: Found) -> dict[str, Any]:
    return run_in_process(_look, run_config, "harvester")


def _theirs(run_config: RunConfig, found: Found) -> dict[str, Any]:
    return run_in_process(_look, run_config, "stock")


def _look(run_config: RunConfig, system: str) -> dict[str, Any]:
    return asyncio.run(_engine(run_config, system))


async def _engine(run_config: RunConfig, system: str) -> dict[str, Any]:
    if system == "stock":
        async with stock(run_config, {}, "fcfs") as llm:
            return await chosen(llm)
    async with harvester(run_config, {}) as (llm, _):
        return await chosen(llm)


async def chosen(llm: HarvestLLM) -> dict[str, Any]:
    """What vLLM chose in a running engine."""
    config = llm.vllm_config
    compilation, scheduler, cache = config.compilation_config, config.scheduler_config, config.cache_config
    sizes = list(compilation.cudagraph_capture_sizes or [])
    ranks = await llm.collective_rpc("chosen")
    return {
        **ranks[0],
        "ranks": len(ranks),
        "executor": str(config.parallel_config.distributed_executor_backend),
        "async_scheduling": bool(scheduler.async_scheduling),
        "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
        "max_num_seqs": int(scheduler.max_num_seqs),
        "block_tokens": int(cache.block_size),
        "kv_blocks": int(cache.num_gpu_blocks or 0),
        "kv_dtype": str(cache.cache_dtype),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "compilation_mode": str(compilation.mode),
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "cudagraph_sizes": sizes,
        "device": _device(),
    }


def _device() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"name": "cpu", "threads": torch.get_num_threads()}
    about = torch.cuda.get_device_properties(0)
    return {"name": about.name, "memory_gib": round(about.total_memory / 2**30, 1), "cuda": torch.version.cuda}


def summary(found: Found) -> dict[str, Any]:
    ours = next(iter(found.values()))
    return {name: ours[name] for name in ("runner", "executor", "attention", "cudagraph_mode", "async_scheduling", "device")}


PART = Part({"harvester": _ours, "stock": _theirs}, summary)
