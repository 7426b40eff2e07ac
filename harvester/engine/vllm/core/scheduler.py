"""vLLM's scheduler around harvester's brain: each step is a view, a plan, the plan applied, and vLLM's own ``schedule()``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from harvester.engine.checkpoints.coordinator import CheckpointCoordinator
from harvester.engine.core.ahead import PlanAhead
from harvester.engine.core.profile import Profile
from harvester.engine.core.reporting import Reporting
from harvester.engine.core.steps import Step, StepsInFlight, StepState, first_computed, seconds_of
from harvester.engine.shared.settings import NO_SLO, Settings, Slo
from harvester.engine.shared.state import SharedState
from harvester.engine.shared.steporder import ENDED_EARLY, ORDER, STEP_SECONDS, Order
from harvester.engine.vllm.connector import CheckpointConnector
from harvester.engine.vllm.core import bounds, kv, reads, rollback
from harvester.engine.vllm.core.queue import WaitingQueue
from harvester.engine.vllm.platform import additional, graph_sizes, keeps_slots, on_cpu, sleep_between_looks
from harvester.policy.brain import Brain
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import parts_of
from harvester.policy.view import EngineView, Plan, Running
from harvester.policy.waiting import Waiting

if TYPE_CHECKING:
    Stock = Scheduler
else:
    Stock = object  # one of vLLM's two schedulers is the next base class


class HarvestScheduling(Stock):
    """Mixed into a vLLM scheduler, which owns the attributes without an underscore. It translates; every choice is the brain's."""

    waiting: WaitingQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config, cpu = self.vllm_config, on_cpu()
        self._kv = kv.groups_of(self.kv_cache_manager, self.block_size)
        self._prefixes = kv.Prefixes(self.kv_cache_manager, self._kv)
        self._settings = settings = Settings.parse(additional(config))
        self._backoff = sleep_between_looks() if cpu else None
        shared = SharedState(settings.shared) if settings.shared is not None else None
        connector = self.connector
        planner = connector.planner if isinstance(connector, CheckpointConnector) else None
        self._checkpoints = None if planner is None else CheckpointCoordinator(planner, shared, reads.answered)
        self._profile = Profile(settings.profile, graph_sizes(config))
        blocks = reads.kv_blocks(self.kv_cache_manager.block_pool)
        if shared is not None and not self._kv.is_one:
            shared.tell_kv(blocks, self._kv.held)
        self._covers = planner is not None and planner.supports_checkpoints
        copying = settings.kv_policy(cpu) if self._covers else None
        policy = replace(settings.policy, keeps_slots=keeps_slots(config))
        self._brain = Brain(parts_of(settings.parts(blocks), self._profile.model, copying), policy)
        if planner is not None and not cpu:
            self.defer_block_free = False  # on a device, loads run behind the steps that may still write to the block
        # If vLLM runs out of KV within a step, the last in the plan's order loses its own: it has not been scheduled yet. By priority vLLM
        # would take the latest arrival: if that was scheduled already, it leaves blocks in the prefix cache that nobody wrote.
        self.policy = SchedulingPolicy.FCFS
        self.waiting = WaitingQueue(self._brain.offline, self._arrive, self._waits)
        self._report = Reporting(settings, config, shared)
        self._slos: dict[str, Slo] = {}  # of the online requests that have not ended
        self._ahead = PlanAhead(self._rows)
        self._steps = StepsInFlight()
        self._epoch = 0  # steps planned before one ended early carry its epoch
        self._answered: list[tuple[Step, float, float]] = []  # answered steps that are not learnt from yet: seconds, time of the answer
        self._speculative = config.speculative_config is not None
        self._updated_s = float("-inf")
        self._stalled, self._refused, self._chunks = False, bounds.Refused(), bounds.Chunks()

    # Events that vLLM reports

    def add_request(self, request: Request) -> None:
        """vLLM's; the brain knows the request from here on."""
        self._ahead.came()
        if not reads.is_offline(request):
            self._slos[request.request_id] = self._settings.slo_of(reads.extra_of(request))
            self._arrive(request)
        super().add_request(request)

    def _arrive(self, request: Request) -> None:
        """Tell the brain of the request: once if it is online, each time it begins to wait if it is offline."""
        now_s = time.monotonic()
        if reads.is_offline(request):
            self._brain.arrive(reads.row_of(request, self._kv), now_s)
        else:
            self._brain.arrive(self._online_request(request, now_s - time.time()), now_s)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """vLLM's; called for a request that ended or was aborted."""
        self._sent()  # fills in a step that vLLM has not asked masks for yet, while all of its requests are still here
        name = request.request_id
        self._ahead.left(name)
        self._slos.pop(name, None)
        self._brain.finish(name, reads.answer_tokens(request))
        self._report.chat(self._brain.chat_times)
        if self._checkpoints is not None:
            self._checkpoints.forget(name)
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """vLLM's. Where stale output is dropped, the KV is not to be trusted either."""
        self._ahead.left(request.request_id)
        if not drop_stale_output and self._checkpoints is not None:
            self._checkpoints.preempted(request)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """vLLM's. No KV that was computed is right any more: not on the host and not on its way back."""
        if self._checkpoints is not None and self.connector is not None:
            self.connector.reset_cache()
            for request in self.kv_holding_waiting:
                rollback.fail_load(self, request)
        return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))

    # A step: planned, sent, answered or rolled back

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._sent()
        if len(self._answered) > 1:  # vLLM asks for no masks of a pooling model while several steps are under way
            self._learn()
        if self.failed_recving_kv_req_ids and rollback.begin_anew(self):
            self._ahead.clear()
        now_s = time.monotonic()
        plan = self._ahead.take() or self._brain.plan(self._view(now_s))
        plan = bounds.with_adapters(self, plan, self.running, self._brain.gave_way)
        with self._applied(plan, now_s):
            output = super().schedule(throttle_prefills)
        self._report.planned(plan)
        self._planned(output, plan, now_s)
        return output

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        """vLLM's; called when the workers have the step. What can be done while they compute is done here."""
        bitmask = super().get_grammar_bitmask(scheduler_output)
        self._learn()
        self._sent()
        now_s = time.monotonic()
        self._cover(now_s)
        if not self._speculative and self._ahead.look(self.running) and self._is_settled():
            self._ahead.expect(self._brain.plan(self._view(now_s)))
        return bitmask

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        self._sent()
        now_s = time.monotonic()
        step = self._steps.answer(now_s)
        timed_s: float | None = getattr(model_runner_output, STEP_SECONDS, None)
        seconds = seconds_of(step, self._updated_s, now_s) if timed_s is None else timed_s
        if getattr(model_runner_output, ENDED_EARLY, False):
            if not step.rolled_back:
                self._roll_back(step, now_s)
        elif step.load.tokens:
            self._answered.append((step, seconds, now_s))
        if step.tokens:
            self._brain.answered(step.ran, seconds, now_s)
            self._report.chat(self._brain.chat_times)
        self._report.ends(step, seconds, self.kv_cache_manager.usage)
        self._updated_s = now_s
        return super().update_from_output(scheduler_output, model_runner_output)

    def _view(self, now_s: float) -> EngineView:
        if self.lora_config is not None and self.waiting.has_online:
            self.waiting.take_adapters(bounds.taken_by_chats(self))
        rows, batch = self._ahead.rows(self.running, now_s)
        if self._covers and self._checkpoints is not None and self.waiting.has_online:
            rows, batch = self._checkpoints.marked(rows, self.running), None
        chat_only, segments = self._report.chat_only(now_s), self._report.max_segments
        return reads.view(self, self._kv, rows, batch, now_s, max_segments=segments, stalled=self._stalled, chat_only=chat_only)

    def _mamba_block_aligned_split(
        self, request: Request, num_new_tokens: int, num_new_local_computed_tokens: int = 0, num_external_computed_tokens: int = 0
    ) -> int:
        """vLLM's: a chunk of a prompt, which in a model with recurrent layers ends with a KV block if it can."""
        split, cached = super()._mamba_block_aligned_split, (num_new_local_computed_tokens, num_external_computed_tokens)
        start = request.num_computed_tokens + sum(cached)
        return self._chunks.tokens(self, request, start, num_new_tokens, lambda: split(request, num_new_tokens, *cached))

    @contextmanager
    def _applied(self, plan: Plan, now_s: float) -> Iterator[None]:
        """Set vLLM's own fields to the plan while one step is scheduled."""
        batch = list(self.running)
        if self._checkpoints is not None:
            self._checkpoints.request_copies(plan)
        held = [batch[i] for i in (*plan.pause, *plan.sit_out)]
        self.running = [batch[i] for i in plan.run]
        for i in (*plan.swap_out, *plan.preempt):
            self._preempt_request(batch[i], now_s)
        tokens, seqs, adapters = self.max_num_scheduled_tokens, self.max_num_active_reqs, self.lora_config
        self.lora_config = bounds.adapters_left(adapters, self.running, held)
        if plan.budget_tokens is not None and not bounds.keeps_items_whole(self):
            self.max_num_scheduled_tokens = min(tokens, plan.budget_tokens)
        self.max_num_active_reqs = seqs - len(plan.pause)
        self.waiting.rank(plan.ranks)
        self.waiting.open(plan.admit)
        try:
            yield
        finally:
            self.waiting.close()
            self.max_num_scheduled_tokens, self.max_num_active_reqs, self.lora_config = tokens, seqs, adapters
            self.running = self.running + held

    def _planned(self, output: SchedulerOutput, plan: Plan, now_s: float) -> None:
        """Note the step, tell the workers whether it may end, and the front end what runs."""
        tokens = output.total_num_scheduled_tokens
        allowed = self.max_num_scheduled_tokens if plan.budget_tokens is None else plan.budget_tokens
        refused = self._refused.again(self, output, allowed)
        idle = not tokens and self.waiting.has_ready and not self._steps
        self._stalled = refused or idle or bounds.waits_for_items(self, output, allowed)
        if not tokens:
            self._ahead.clear()  # the running requests are in another order now, and vLLM may ask for no masks before the next step
            self._steps.plan(Step(None, output, 0, False, now_s, 0.0, StepState.SENT))
            return
        estimate_s = self._brain.parts.model.high_s(reads.rough_load(output)) or 0.0
        may_end = self._report.may_end(plan)
        step = Step(self._steps.next_number, output, tokens, plan.alone, now_s, estimate_s)
        every = self._report.layers_between(estimate_s, plan.detect_s) if may_end else 0
        setattr(output, ORDER, Order(self._steps.next_number, every, self._epoch))
        self._steps.plan(step)
        self._report.sends(step, plan.tpot_s, endable=may_end)

    def _sent(self) -> None:
        """Fill in what is only needed when the step is answered, while the workers compute it; vLLM may go on before it asks for masks."""
        step = self._steps.unsent()
        if step is None:
            return
        step.state = StepState.SENT
        reads.fill_in(self, step, self._brain.offline.known, self._prefixes)
        if self._checkpoints is not None:
            self._checkpoints.admitted(step.admitted, step.computed, step.began_s)
        if self._report.can_end_steps:
            step.registered = reads.registered_blocks(self, first_computed(self._steps, step.computed))
        model = self._brain.parts.model
        step.estimate_s = model.high_s(step.load) or 0.0
        if self._backoff is not None:
            self._backoff.expect(step.began_s, (model.median_s(step.load) or 0.0) if step.alone else 0.0)
        self._report.refine_estimate(step)

    def _roll_back(self, ended: Step, now_s: float) -> None:
        """Roll back the step, which ended early, and those behind it."""
        self._epoch += 1
        self._ahead.clear()
        tokens = rollback.roll_back(self, self._steps.roll_back(ended), now_s)
        self._report.took_back(ended, tokens)

    def _learn(self) -> None:
        """Learn from the answered steps, while the next one runs."""
        for step, seconds, now_s in self._answered:
            self._brain.observe(step.ran, seconds, now_s)
            self._report.learnt(self._profile, step, self._brain.predictor, self._brain.chat_fresh)
        self._answered.clear()

    def _cover(self, now_s: float) -> None:
        if self._covers and self._checkpoints is not None:
            offline = {request.request_id for request in self.running if reads.is_offline(request)}
            pool = self.kv_cache_manager.block_pool
            self._brain.choose_copies(self._checkpoints.state(self.running, offline, self.waiting.ranks, pool, now_s))

    def _is_settled(self) -> bool:
        """Whether the next plan does not depend on when it is made: no request waits for a first token, nor for another's slot."""
        return not self.waiting.has_online and not self.kv_holding_waiting and self._brain.online <= self.max_num_active_reqs

    def _online_request(self, request: Request, shift_s: float) -> OnlineRequest:
        return reads.online_request(request, self._kv, self._slos.get(request.request_id, NO_SLO), shift_s)

    def _waits(self, request: Request) -> Waiting:
        return reads.waiting(request, self._kv, self._slos.get(request.request_id, NO_SLO), time.monotonic() - time.time())

    def _rows(self, requests: Iterable[Request], shift_s: float) -> list[Running]:
        return reads.running(requests, self._kv, self.max_num_scheduled_tokens, self._slos, shift_s)


class HarvestScheduler(HarvestScheduling, Scheduler):
    """For synchronous scheduling (CPU)."""


class AsyncHarvestScheduler(HarvestScheduling, AsyncScheduler):
    """For asynchronous scheduling (CUDA)."""
