"""vLLM's scheduler with harvester's plan around each step: view, plan, apply, ``super().schedule()``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harvester.engine import compat
from harvester.engine.queue import TwoLaneQueue
from harvester.engine.waiting import sleep_between_looks
from harvester.policy.share import Limits, Plan, plan_step

LIMITS_KEY = "harvester_share"


class HarvestScheduling:
    """Mixed into a vLLM scheduler, which owns every attribute used here."""

    running: list[Request]
    max_num_scheduled_tokens: int
    max_num_active_reqs: int
    block_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if current_platform.is_cpu():
            sleep_between_looks()
        given = self.vllm_config.additional_config  # type: ignore[attr-defined]
        self._limits = Limits(**given[LIMITS_KEY])
        self._online_at_s = float("-inf")
        self.waiting = TwoLaneQueue(lambda request: compat.final_blocks(request, self.block_size))

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        offline, now_s = self.waiting.offline, time.monotonic()
        view = compat.view(self, list(self.waiting.online), offline.peek_request() if offline else None, now_s - self._online_at_s)
        if view.online_waiting or any(not item.offline for item in view.running):
            self._online_at_s, view = now_s, replace(view, online_idle_s=0.0)
        with self._applied(plan_step(view, self._limits)):
            return super().schedule(throttle_prefills)  # type: ignore[misc]

    @contextmanager
    def _applied(self, plan: Plan) -> Iterator[None]:
        """Hold the plan in vLLM's own fields for the length of one step."""
        batch = list(self.running)
        paused = [batch[i] for i in plan.pause]
        tokens, seqs = self.max_num_scheduled_tokens, self.max_num_active_reqs
        self.running = [batch[i] for i in plan.run]
        now_s = time.monotonic()
        for i in plan.preempt:
            self._preempt_request(batch[i], now_s)  # type: ignore[attr-defined]
        if plan.budget_tokens is not None:
            self.max_num_scheduled_tokens = min(tokens, plan.budget_tokens)
        self.max_num_active_reqs = seqs - len(paused)
        self.waiting.open_gate(plan.offline_slots, plan.offline_blocks)
        try:
            yield
        finally:
            self.waiting.close_gate()
            self.max_num_scheduled_tokens, self.max_num_active_reqs = tokens, seqs
            self.running = self.running + paused


class HarvestScheduler(HarvestScheduling, Scheduler):  # type: ignore[misc]
    """For synchronous scheduling (CPU)."""


class AsyncHarvestScheduler(HarvestScheduling, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling (CUDA)."""
