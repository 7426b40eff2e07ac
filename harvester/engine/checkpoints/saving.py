"""What the scheduler does about checkpoints around each step. Without our connector, nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, replace
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.request import Request, RequestStatus

from harvester.engine.checkpoints.planner import Planner
from harvester.engine.checkpoints.wish import Done, StepWish
from harvester.engine.core.queue import is_offline
from harvester.engine.shared.settings import Settings
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.vllm.connector import CheckpointConnector
from harvester.policy.kv.checkpoint import CPU_COST, CUDA_COST, CopyView, Coverage, Kept, Thresholds, limit_blocks, waited_blocks
from harvester.policy.order.enst import Resident, swap_out
from harvester.policy.order.online import OnlineTurns
from harvester.policy.view import Plan, View

AVERAGE = 0.1  # weight of the newest step
COUNTED = (
    Count.STORED_BLOCKS,
    Count.LOADED_BLOCKS,
    Count.STORED_BYTES,
    Count.LOADED_BYTES,
    Count.STORE_S,
    Count.LOAD_S,
    Count.FAILED_COPIES,
    Count.WAITED_BLOCKS,
)  # in the order of `Done`
LONGEST_STEP_S = 5.0  # two steps further apart had something else between them


class Checkpoints:
    """Of one scheduler."""

    def __init__(self, connector: Any, settings: Settings) -> None:
        self._planner: Planner | None = connector.planner if isinstance(connector, CheckpointConnector) else None
        self._config = settings.checkpoint
        self._cost = self._config.copy_cost or (CPU_COST if current_platform.is_cpu() else CUDA_COST)
        self._ttft_s = settings.slo.ttft_slo_ms / 1000
        self._shared = SharedState(settings.shared) if settings.shared is not None else None
        self._coverage = Coverage(Thresholds(self._config.start_free, self._config.full_free, self._config.online))
        self._grants: Mapping[str, int] = {}  # blocks by request, beside the next step
        self._limit = 0  # blocks beside the last one
        self._step_s = 0.0
        self._block_s: float | None = None
        self._waited = 0  # most blocks that a step waits for
        self._planned_s: float | None = None
        self._lost: dict[str, int] = {}  # of preempted requests: tokens that were computed

    def allow(self, scheduler: Any, plan: Plan, now_s: float) -> None:
        """Before a step: what was planned while the last one ran, and how much of it there is time for beside this one."""
        planner = self._planner
        if planner is None or not planner.able:
            return
        self._measure(planner, now_s, running=bool(scheduler.running))
        online = not plan.preemptible
        slack_s = plan.limit_s - self._step_s
        awaited = limit_blocks(self._step_s, slack_s, self._block_s, online=False, cost=self._cost)
        back = any(not is_offline(request) for request in scheduler.kv_holding_waiting)
        short = _short_blocks(scheduler, planner) > 0
        within = limit_blocks(self._step_s, slack_s, self._block_s, online=online, cost=self._cost)
        self._limit = awaited if short else within
        allowed, for_chat = (awaited if back else max(1, self._limit), awaited) if online else (None, None)
        given = self._config.wait_blocks
        self._waited = waited_blocks(self._ttft_s, self._block_s) if given is None else given
        planner.wish = StepWish(self._grants, allowed, for_chat, self._waited)
        self._grants = {}

    def plan(self, scheduler: Any) -> None:
        """While a step is computed: what to copy beside the next one."""
        planner = self._planner
        if planner is None or not planner.able:
            return
        kept = [
            Kept(request.request_id, answered(request) // planner.block_tokens, planner.saved(request.request_id), is_offline(request))
            for request in _victims_first(scheduler)
        ]
        pool = scheduler.kv_cache_manager.block_pool
        room = self._room(planner, kept)
        self._grants = self._coverage.plan(CopyView(kept, pool.get_num_free_blocks(), pool.num_gpu_blocks, self._limit, room))
        self._show(planner, scheduler, kept)

    def marked(self, view: View, running: list[Request]) -> View:
        """The view of a step that may have victims, with what each offline request would lose; unchanged without checkpoints."""
        planner = self._planner
        if planner is None or not planner.able or not view.online_waiting:
            return view
        marked = [
            item._replace(unsaved=self._uncovered(planner, request)) if item.offline else item
            for request, item in zip(running, view.running, strict=True)
        ]
        return replace(view, running=marked)

    def _uncovered(self, planner: Planner, request: Request) -> int:
        """Blocks that it would compute again: those that are not on the host, without the few that are saved at once."""
        missing: int = answered(request) // planner.block_tokens - planner.saved(request.request_id)
        return max(0, missing - self._waited)

    def swap_out(self, scheduler: Any, turns: OnlineTurns, now_s: float) -> None:
        """Where the next online request finds no KV, and no offline work has any, those whose turn comes last give theirs up."""
        planner = self._planner
        need = _short_blocks(scheduler, planner) if planner is not None else 0
        if planner is None or need <= 0:
            return
        first, enst = scheduler.waiting.online.peek(), turns.enst(now_s, scheduler.max_num_active_reqs)
        if first.request_id not in enst:
            return
        online = {request.request_id: request for request in scheduler.running if request.request_id in enst}
        residents = [
            Resident(name, enst[name], blocks := answered(request) // planner.block_tokens, blocks - planner.saved(name))
            for name, request in online.items()
        ]
        chosen = swap_out(residents, need, enst[first.request_id], self._block_s or 0.0, self._waited)
        for name in chosen:
            scheduler.running.remove(online[name])
            scheduler._preempt_request(online[name], now_s)
        if self._shared is not None:
            self._shared.add(Count.SWAPPED, len(chosen))

    def _room(self, planner: Planner, kept: list[Kept]) -> int:
        free = planner.pool.capacity - planner.pool.used
        return free if free > planner.pool.capacity // 8 else planner.pool.room(one.name for one in kept)

    def _measure(self, planner: Planner, now_s: float, *, running: bool) -> None:
        """How long steps and copies take."""
        if self._planned_s is not None and now_s - self._planned_s < LONGEST_STEP_S:
            self._step_s += AVERAGE * (now_s - self._planned_s - self._step_s)
        self._planned_s = now_s if running else None
        done, planner.done = planner.done, Done()
        if done.stored_blocks:
            block_s = done.store_s / done.stored_blocks / planner.config.num_workers
            self._block_s = block_s if self._block_s is None else self._block_s + AVERAGE * (block_s - self._block_s)
        if self._shared is not None:
            for count, value in zip(COUNTED, astuple(done), strict=True):
                self._shared.add(count, value)

    def preempted(self, request: Request) -> None:
        """It is about to lose its KV, which is whole."""
        if self._planner is not None:
            self._planner.preempted(request)
            self._lost[request.request_id] = answered(request)

    def admitted(self, names: Collection[str], computed: Mapping[str, int], now_s: float) -> None:
        """These came from the waiting queue in a step, with so many ``computed`` tokens each."""
        for name in names:
            lost = self._lost.pop(name, None)
            if lost is not None and name in computed and self._planner is not None and self._shared is not None:
                began_s = self._planner.began_s.pop(name, now_s)
                self._resumed(self._planner, self._shared, name, lost, lost - computed[name])
                self._shared.add(Count.RESUME_S, now_s - began_s)

    def _resumed(self, planner: Planner, shared: SharedState, name: str, lost: int, again: int) -> None:
        shared.add(Count.RESUMED, 1)
        shared.add(Count.LOST_TOKENS, lost)
        shared.add(Count.RESUMED_WHOLE, again < planner.block_tokens)
        failed = name in planner.failed_loads
        planner.failed_loads.discard(name)
        cause = Count.FAILED_TOKENS if failed else Count.EDGE_TOKENS if again < planner.block_tokens else Count.UNCOVERED_TOKENS
        shared.add(cause, max(0, again))

    def _show(self, planner: Planner, scheduler: Any, kept: list[Kept]) -> None:
        if self._shared is None:
            return
        computed = sum(answered(request) for request in scheduler.running)
        saved = sum(one.saved for one in kept)
        self._shared.set(Count.HOST_BLOCKS, planner.pool.used)
        self._shared.set(Count.HOST_BYTES, planner.pool.used * planner.slot_bytes)
        self._shared.set(Count.COVERED_BLOCKS, saved)
        self._shared.set(Count.LAG_TOKENS, max(0, computed - saved * planner.block_tokens))
        self._shared.set(Count.EVICTED_BLOCKS, planner.pool.evicted)

    def forget(self, names: Collection[str]) -> None:
        """These requests have ended."""
        for kept in (self._lost, self._planner.began_s) if self._planner is not None else ():
            for name in names:
                kept.pop(name, None)

    def reset(self, scheduler: Any) -> None:
        """No KV that was computed is right any more: not on the host and not on its way back."""
        if self._planner is not None:
            scheduler.connector.reset_cache()
            for request in scheduler.kv_holding_waiting:
                fail_load(scheduler, request)


def begin_anew(scheduler: Any) -> bool:
    """Put those whose KV did not come back into the waiting queue, where chat goes first. Returns whether there were any.

    vLLM would try them ahead of all others, who wait behind the first that finds no KV; and keep KV free from themselves for themselves.
    """
    back = scheduler.failed_recving_kv_req_ids & scheduler.finished_recving_kv_req_ids
    for request in [request for request in scheduler.kv_holding_waiting if request.request_id in back]:
        if not request.num_computed_tokens and scheduler._handle_blocked_waiting_request(request):
            scheduler.kv_holding_waiting.remove_requests([request])
            scheduler.deferred_waiting.discard(request)
            scheduler._inflight_prefills.discard(request)
            scheduler.waiting.add_request(request)
    return bool(back)


def answered(request: Request) -> int:
    """Tokens whose KV is computed, without those in flight."""
    return max(0, int(request.num_computed_tokens - request.num_in_flight_tokens))


def _short_blocks(scheduler: Any, planner: Planner) -> int:
    """KV blocks that the next online request lacks where no offline work holds any; 0 or less where it lacks none."""
    if not len(scheduler.waiting.online) or any(is_offline(request) for request in scheduler.running):
        return 0
    needed = -(-scheduler.waiting.online.peek().num_tokens // planner.block_tokens)
    return int(needed - scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def fail_load(scheduler: Any, request: Request) -> None:
    """When the KV on its way to the request is there, it is thrown away, and the request begins anew."""
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        request.num_computed_tokens = 0
        scheduler.failed_recving_kv_req_ids.add(request.request_id)


def _victims_first(scheduler: Any) -> list[Request]:
    """The running requests: offline ones, newest first, then online ones, the last in their order first."""
    offline = [request for request in reversed(scheduler.running) if is_offline(request)]
    online = [request for request in scheduler.running if not is_offline(request)]
    ranks = scheduler.waiting.online.ranks
    return offline + sorted(online, key=lambda request: -ranks.get(request.request_id, 0))
