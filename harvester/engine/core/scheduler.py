"""vLLM's scheduler with harvester's plan around each step: view, plan, apply, ``super().schedule()``; then what came of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from harvester.engine.checkpoints.saving import Checkpoints, begin_anew
from harvester.engine.core import compat
from harvester.engine.core.ahead import PlanAhead, Planned
from harvester.engine.core.learning import OnlineLatencyModel
from harvester.engine.core.queue import OfflineRequests, TwoLaneQueue, is_offline, job_of
from harvester.engine.core.reporting import Reporting
from harvester.engine.core.steps import Step, first_computed, registered_blocks, rollback, seconds_of
from harvester.engine.shared.settings import Settings
from harvester.engine.shared.steporder import ENDED_EARLY, ORDER, STEP_SECONDS, Order
from harvester.engine.vllm.platform import graph_sizes, sleep_between_looks
from harvester.policy.model.arrivals import ArrivalRate, BurstReserve
from harvester.policy.model.latency import StepLoad
from harvester.policy.order.fair import FairOrder
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.online import OnlineTurns, left_out
from harvester.policy.step.plan import plan_step
from harvester.policy.step.preempt import best_step_s
from harvester.policy.view import Plan


class HarvestScheduling:
    """Mixed into a vLLM scheduler, which owns the attributes without an underscore."""

    running: list[Request]
    requests: dict[str, Request]
    kv_holding_waiting: Any
    max_num_scheduled_tokens: int
    max_num_active_reqs: int
    block_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = sleep_between_looks() if current_platform.is_cpu() else None
        self._settings = Settings.parse(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        schedule = self._settings.schedule
        self._fair = FairOrder()
        self.waiting = TwoLaneQueue(lambda request: compat.final_blocks(request, self.block_size), self._fair)
        self._turns = OnlineTurns(Mlfq(schedule.mlfq_levels, 0.01, schedule.starvation_ms / 1000) if schedule.mlfq else None)
        self._bursts = self._first_reserve() if schedule.reserve == "bursts" else None
        self._pace = ArrivalRate()
        self._learning = OnlineLatencyModel(self._settings, graph_sizes(self.vllm_config))  # type: ignore[attr-defined]
        self._report = Reporting(self._settings, self.vllm_config)  # type: ignore[attr-defined]
        self._checkpoints = Checkpoints(self.connector, self._settings)  # type: ignore[attr-defined]
        self._steps: deque[Step] = deque()
        self._step_number = 0
        self._epoch = 0  # steps planned before one ended early carry its epoch
        self._online_at_s = float("-inf")
        self._jobs = OfflineRequests()
        self._gone: list[str] = []
        self._outlook = PlanAhead(self._settings, self._jobs, self.block_size, self.max_num_scheduled_tokens)
        self._unsettled: Step | None = None
        self._answered: list[tuple[Step, float, float]] = []
        self._speculative = self.vllm_config.speculative_config is not None  # type: ignore[attr-defined]
        self._updated_s = float("-inf")

    def _first_reserve(self) -> BurstReserve:
        """Until the first burst is seen, the fixed reserve."""
        share, blocks = self._settings.share, self.kv_cache_manager.block_pool.num_gpu_blocks  # type: ignore[attr-defined]
        return BurstReserve(slots=share.reserved_slots, blocks=int(share.reserved_kv * blocks))

    # What vLLM tells us of

    def add_request(self, request: Request) -> None:
        """vLLM's; known to the policy from here on."""
        self._outlook.came()
        if is_offline(request):
            self._jobs.add(request.request_id, job_of(request))
        elif request.request_id not in self._turns:
            now_s = time.monotonic()
            prefill_s = self._learning.model.predict(StepLoad.prefill(request.num_prompt_tokens))
            self._turns.arrive(request.request_id, request.priority, prefill_s, now_s)
            self._pace.arrival(now_s)
            if self._bursts is not None:
                self._bursts.arrival(now_s, compat.waiting_blocks(request, self.block_size))
        super().add_request(request)  # type: ignore[misc]

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """vLLM's, of a request that ended or was aborted."""
        self._gone.append(request.request_id)
        self._outlook.left(request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _forget_the_gone(self) -> None:
        self._checkpoints.forget(self._gone)
        for name in self._gone:
            if name in self._turns:
                self._turns.forget(name)
            job = self._jobs.discard(name)
            if job is not None and job in self._fair:
                self._fair.leave(job)
        self._gone.clear()

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """vLLM's. Where stale output is dropped, the KV is not to be trusted either."""
        self._outlook.left(request.request_id)
        if not drop_stale_output:
            self._checkpoints.preempted(request)
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """vLLM's; checkpoints are always forgotten with it."""
        self._checkpoints.reset(self)
        return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))  # type: ignore[misc]

    # A step

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._settle()
        now_s = time.monotonic()
        if begin_anew(self):
            self._outlook.clear()
        planned = self._outlook.take() or self._plan(now_s)
        self._checkpoints.allow(self, planned.plan, now_s)
        with self._applied(planned):
            output = super().schedule(throttle_prefills)  # type: ignore[misc]
        self._report.planned(planned.plan, planned.view.reserve)
        self._note(output, planned.plan, now_s)
        return output

    def _plan(self, now_s: float) -> Planned:
        self._forget_the_gone()
        ranks = self._turns.ranks(now_s)
        self.waiting.online.ranks = ranks
        self._checkpoints.swap_out(self, self._turns, now_s)
        reserve = self._bursts.reserve(now_s) if self._bursts is not None else None
        (rows, batch), promise = self._outlook.rows(self.running, ranks, now_s), self._outlook.promise
        if len(self._turns):
            self._online_at_s = now_s
        view = compat.view(self, rows, self.waiting, now_s, now_s - self._online_at_s, promise, reserve, self._offline_step_s(now_s))
        model = self._learning.model if self._settings.schedule.budget == "slo" else None
        view = self._checkpoints.marked(view, self.running)
        return Planned(view, plan_step(view, self._settings.limits, model, batch), ranks)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        """vLLM's; called when the step has been sent to the workers."""
        bitmask = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        self._learn()
        self._settle()
        self._checkpoints.plan(self)
        if not self._speculative and self._outlook.look(self.running) and self._is_settled():
            self._outlook.expect(self._plan(time.monotonic()))
        return bitmask

    def _is_settled(self) -> bool:
        """Whether the next step is the same whenever it is planned: nobody waits for a first token, nor for another's slot."""
        return len(self.waiting.online) == 0 and not self.kv_holding_waiting and len(self._turns) <= self.max_num_active_reqs

    def _offline_step_s(self, now_s: float) -> float:
        """Most seconds of a step of offline work alone: little is lost where an arrival ends it."""
        if self._settings.schedule.budget != "slo":
            return math.inf
        return best_step_s(self._learning.model.predict(StepLoad(seqs=1)), self._pace.gap_s(now_s))

    @contextmanager
    def _applied(self, planned: Planned) -> Iterator[None]:
        """Hold the plan in vLLM's own fields for the length of one step."""
        batch, plan = list(self.running), planned.plan
        paused = [batch[i] for i in plan.pause]
        tokens, seqs = self.max_num_scheduled_tokens, self.max_num_active_reqs
        self.running = [batch[i] for i in plan.run]
        now_s = time.monotonic()
        for i in plan.preempt:
            self._preempt_request(batch[i], now_s)
        if plan.budget_tokens is not None:
            self.max_num_scheduled_tokens = min(tokens, plan.budget_tokens)
        self.max_num_active_reqs = seqs - len(paused)
        paused += self._without_turn(planned.ranks, planned.view.free_blocks)
        self.waiting.open_gate(plan.offline_slots, plan.offline_blocks)
        try:
            yield
        finally:
            self.waiting.close_gate()
            self.max_num_scheduled_tokens, self.max_num_active_reqs = tokens, seqs
            self.running = self.running + paused

    def _without_turn(self, ranks: Mapping[str, int], free_blocks: int) -> list[Request]:
        """Take online requests whose turn it is not out of the step, where there are more than slots."""
        if len(self._turns) <= self.max_num_active_reqs:
            return []
        online = [request.request_id for request in self.running if request.request_id not in self._jobs]
        waiting = {request.request_id: compat.waiting_blocks(request, self.block_size) for request in self.waiting.online}
        out = left_out(online, waiting, ranks, self.max_num_active_reqs, free_blocks)
        paused = [request for request in self.running if request.request_id in out]
        if paused:
            self.running = [request for request in self.running if request.request_id not in out]
        return paused

    def _note(self, output: SchedulerOutput, plan: Plan, now_s: float) -> None:
        """Note the step, tell the worker whether it may end, and the shared state what runs."""
        if not output.total_num_scheduled_tokens:
            if len(self.waiting.online) and not self._steps:
                self._evict_newest()
            self._steps.append(Step(0, output, False, now_s, 0.0))
            return
        self._step_number += 1
        step = Step(self._step_number, output, plan.preemptible, now_s, self._learning.estimate_s(compat.rough_load(output)))
        endable = self._report.can_end_steps and plan.preemptible
        every = self._report.layers_between(step.estimate_s) if endable else 0
        setattr(output, ORDER, Order(step.number, every, self._epoch))
        self._steps.append(step)
        self._unsettled = step
        self._report.sends(step, endable=endable)

    def _settle(self) -> None:
        """What is only needed when the step is answered: noted while the workers compute it."""
        step, self._unsettled = self._unsettled, None
        if step is None:
            return
        step.computed = compat.computed_before(self, step.output)
        step.admitted = compat.admitted(step.output)
        self._checkpoints.admitted(step.admitted, step.computed, step.began_s)
        step.load = compat.load_of(step.output, step.computed)
        if self._report.can_end_steps:
            step.registered = registered_blocks(self, first_computed(self._steps, step.computed))
        for name, tokens in step.output.num_scheduled_tokens.items():
            job = self._jobs.get(name)
            if job is None:
                step.online.append(name)
            else:
                step.served[job] = step.served.get(job, 0) + tokens
        step.estimate_s = self._learning.estimate_s(step.load)
        if self._patience is not None:
            self._patience.expect(step.began_s, self._learning.predict_s(step.load) if step.offline_only else 0.0)
        self._report.told_better(step)

    def _evict_newest(self) -> None:
        """Nothing could run though chat waits: whatever vLLM lacks, the newest offline request gives up its KV for it."""
        newest = next((request for request in reversed(self.running) if request.request_id in self._jobs), None)
        if newest is not None:
            self.running.remove(newest)
            self._preempt_request(newest, time.monotonic())

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        self._settle()
        step, now_s = self._steps.popleft(), time.monotonic()
        timed_s: float | None = getattr(model_runner_output, STEP_SECONDS, None)
        seconds = seconds_of(step, self._updated_s, now_s) if timed_s is None else timed_s
        if getattr(model_runner_output, ENDED_EARLY, False):
            if not step.void:
                self._ended_early(step, now_s)
        elif step.load.tokens:
            self._answered.append((step, seconds, now_s))
        self._report.ends(step, seconds, self.kv_cache_manager.usage)  # type: ignore[attr-defined]
        self._updated_s = now_s
        if self._steps:
            self._steps[0].began_s = max(now_s, self._steps[0].began_s)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _ended_early(self, step: Step, now_s: float) -> None:
        self._epoch += 1
        self._outlook.clear()
        self._report.took_back(step, rollback(self, deque((step, *self._steps)), now_s))

    def _learn(self) -> None:
        """From the steps that were answered; done while the next one runs."""
        for step, seconds, now_s in self._answered:
            self._learning.observe(step.load, seconds)
            self._report.learnt(self._learning, step.number)
            self._turns.ran((name for name in step.online if name in self._turns), seconds, now_s)
            for job, tokens in step.served.items():
                if job in self._fair:
                    self._fair.charge(job, tokens)
        self._answered.clear()


class HarvestScheduler(HarvestScheduling, Scheduler):  # type: ignore[misc]
    """For synchronous scheduling (CPU)."""


class AsyncHarvestScheduler(HarvestScheduling, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling (CUDA)."""
