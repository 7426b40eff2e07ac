"""harvester's scheduler with a gate that counts the KV a request has now, as vLLM's does, so that KV runs out all the time."""

from __future__ import annotations

from vllm.v1.request import Request

from harvester.engine import compat
from harvester.engine.scheduler import AsyncHarvestScheduler, HarvestScheduler


def _blocks_now(request: Request, block_tokens: int) -> int:
    return compat.waiting_blocks(request, block_tokens)


compat.final_blocks = _blocks_now


class GreedyScheduler(HarvestScheduler):
    """Imported by name in the engine core."""


class AsyncGreedyScheduler(AsyncHarvestScheduler):
    """Imported by name in the engine core."""
