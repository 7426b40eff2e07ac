"""Repairs the state of vLLM's scheduler after steps that are rolled back, and after KV that does not come back from the host.

When vLLM plans a step, it counts its tokens and registers the KV blocks that it will fill for prefix caching. Where the step ends at a
safepoint, none of that came true, nor of the steps planned after it. The scheduler's state must be as if they had never been planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

from harvester.engine.core.steps import Step
from harvester.engine.vllm.core.reads import is_offline


def roll_back(scheduler: Scheduler, steps: Sequence[Step], now_s: float) -> int:
    """Undo ``steps``, oldest first, none of which was computed. Returns how many tokens they had planned.

    Requests that ran before go on where they were. Those that were admitted go back to the waiting queue, since the prefix blocks they
    were given may be among the ones never written. Output of these steps that vLLM is still to see is marked stale, so it is only counted.
    """
    _unregister(scheduler, steps)
    _distrust_loads(scheduler, steps)
    admitted = {name for step in steps for name in step.admitted}  # in any: it may have lost its KV between two of them
    seen: set[str] = set()
    for step in steps:
        for request_id, computed in step.computed.items():
            request = scheduler.requests.get(request_id)
            if request_id in seen or request is None or request.status != RequestStatus.RUNNING:
                continue
            seen.add(request_id)
            if request_id in admitted:
                _put_back(scheduler, request, now_s)
            else:
                _rewind(scheduler, request, computed)
                if scheduler.log_stats and is_offline(request):  # whoever asked for it sees a preemption
                    request.record_event(EngineCoreEventType.PREEMPTED, now_s)
    scheduler.prev_step_scheduled_req_ids.clear()  # the worker is sent all tokens of the next step's requests
    return sum(step.tokens for step in steps)


def begin_anew(scheduler: Any) -> bool:
    """Put requests whose KV did not come back into the waiting queue, where chat goes first. Returns whether there were any.

    vLLM would try them before all others, which then wait behind the first that finds no KV; and it would keep KV free for them that they
    cannot have themselves.
    """
    back = scheduler.failed_recving_kv_req_ids & scheduler.finished_recving_kv_req_ids
    for request in [request for request in scheduler.kv_holding_waiting if request.request_id in back]:
        if not request.num_computed_tokens and scheduler._handle_blocked_waiting_request(request):
            scheduler.kv_holding_waiting.remove_requests([request])
            scheduler.deferred_waiting.discard(request)
            scheduler._inflight_prefills.discard(request)
            scheduler.waiting.add_request(request)
    return bool(back)


def fail_load(scheduler: Any, request: Request) -> None:
    """The KV being loaded for the request is discarded once it is there, and the request begins anew."""
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        request.num_computed_tokens = 0
        scheduler.failed_recving_kv_req_ids.add(request.request_id)


def _unregister(scheduler: Scheduler, steps: Sequence[Step]) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    for step in steps:
        for block, given in step.registered:
            if block.block_hash == given:  # else it has been given away since
                pool.evict_blocks({block.block_id})


def _distrust_loads(scheduler: Scheduler, steps: Sequence[Step]) -> None:
    """A request that is read back from the host may have a prefix that these steps were to write: then it begins anew."""
    unwritten = {block.block_id for step in steps for block, _ in step.registered}
    for request in scheduler.kv_holding_waiting:
        if any(not unwritten.isdisjoint(ids) for ids in scheduler.kv_cache_manager.get_block_ids(request.request_id)):
            fail_load(scheduler, request)


def _rewind(scheduler: Scheduler, request: Request, computed: int) -> None:
    request.num_computed_tokens = computed
    request.num_output_placeholders = 0
    _make_stale(request)
    request.is_prefill_chunk = computed < request.num_tokens
    if request.is_prefill_chunk:
        scheduler._inflight_prefills.add(request)
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        cached = manager.num_cached_block
        if request.request_id in cached:
            cached[request.request_id] = min(cached[request.request_id], computed // manager.block_size)


def _put_back(scheduler: Scheduler, request: Request, now_s: float) -> None:
    scheduler.running.remove(request)
    scheduler._preempt_request(request, now_s, drop_stale_output=True)
    request.num_preemptions -= 1  # it had not begun


def _make_stale(request: Request) -> None:
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.drop_stale_output = True
