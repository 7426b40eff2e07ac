"""harvester's scheduler, made to take KV away from requests all the time.

Its gate counts the KV a request has now, as vLLM's does, so that KV runs out; and before each step any running request may be preempted.
"""

from __future__ import annotations

import random
import time
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from harvester.engine.vllm.core import reads
from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler
from harvester.policy.kv.groups import KvGroups

PREEMPTED = 0.03  # probability, of each running request before each step


def _blocks_now(request: Request, kv: KvGroups) -> int:
    return reads.waiting_blocks(request, kv)


reads.final_blocks = _blocks_now


class Greedy:
    """Mixed into a scheduler."""

    running: list[Request]
    _rng = random.Random(13)

    def schedule(self, *args: Any) -> SchedulerOutput:
        for request in list(self.running):
            if self._rng.random() < PREEMPTED:
                self.running.remove(request)
                self._preempt_request(request, time.monotonic())  # type: ignore[attr-defined]
        return super().schedule(*args)  # type: ignore[misc]


class GreedyScheduler(Greedy, HarvestScheduler):
    """Imported by name in the engine core."""


class AsyncGreedyScheduler(Greedy, AsyncHarvestScheduler):
    """Imported by name in the engine core."""
