"""Reads of vLLM's private attributes, for vLLM 0.32. A test drives them against the installed version."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harvester.engine.core.queue import TwoLaneQueue, is_offline
from harvester.engine.shared.settings import Slo
from harvester.policy.model.latency import StepLoad
from harvester.policy.view import Running, View


def final_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks the request holds when it has made its last allowed token."""
    return int(-(-(request.num_prompt_tokens + request.max_tokens) // block_tokens))


def waiting_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks it needs to be admitted."""
    return int(-(-request.num_tokens // block_tokens))


def running(request: Request, offline: bool, block_tokens: int, max_tokens: int, promise: Slo, rank: int, shift_s: float) -> Running:
    """What the request is when the steps planned so far are done. ``max_tokens``: of any step; ``shift_s``: from wall to monotonic clock.

    Without speculative decoding: the one token that a step planned but not answered will add is not counted by vLLM yet.
    """
    computed = request.num_computed_tokens
    left = request.num_tokens_with_spec + request.num_output_placeholders - computed
    step_tokens = left if left > 0 else 1
    blocks_now = -(-computed // block_tokens)
    return Running(
        offline,
        step_tokens,
        blocks_now,
        final_blocks(request, block_tokens) if offline else 0,
        -(-(computed + min(step_tokens, max_tokens)) // block_tokens) - blocks_now,
        computed,
        left <= 0 or request.num_output_tokens + request.num_output_placeholders > 0,
        request.arrival_time + shift_s + promise.ttft_s,
        promise.tpot_s,
        rank,
    )


def view(
    scheduler: Scheduler,
    rows: list[Running],
    waiting: TwoLaneQueue,
    now_s: float,
    online_idle_s: float,
    promise: Callable[[Request], Slo],
    reserve: tuple[int, int] | None,
    offline_step_s: float,
) -> View:
    """What the scheduler holds now; ``rows``: of its running requests. ``online_idle_s``: since a step last had online work."""
    pool = scheduler.kv_cache_manager.block_pool
    block_tokens, max_tokens = scheduler.block_size, scheduler.max_num_scheduled_tokens
    shift_s = now_s - time.time()
    online = list(waiting.online)
    back = [r for r in scheduler.kv_holding_waiting if r.request_id in scheduler.finished_recving_kv_req_ids and not is_offline(r)]
    return View(
        running=rows,
        online_waiting=len(online),
        online_waiting_blocks=sum(waiting_blocks(r, block_tokens) for r in online),
        offline_next_blocks=final_blocks(waiting.offline.peek(), block_tokens) if len(waiting.offline) else 0,
        free_blocks=pool.get_num_free_blocks(),
        total_blocks=pool.num_gpu_blocks,
        max_seqs=scheduler.max_num_active_reqs - len(scheduler.kv_holding_waiting),  # whose KV is read back: they join when it is there
        online_idle_s=online_idle_s,
        now_s=now_s,
        waiting_due_s=min((r.arrival_time + shift_s + promise(r).ttft_s for r in online), default=float("inf")),
        waiting_tokens=sum(r.num_tokens for r in online),
        returning=sum(max(1, r.num_tokens - r.num_computed_tokens) for r in back),
        returning_context=sum(r.num_computed_tokens for r in back),
        max_tokens=max_tokens,
        offline_step_s=offline_step_s,
        loading_growth=sum(
            final_blocks(r, block_tokens) - waiting_blocks(r, block_tokens) for r in scheduler.kv_holding_waiting if is_offline(r)
        ),
        reserve=reserve,
        guarantee=waiting.offline.guarantee(),
    )


def computed_before(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, int]:
    """Tokens of each request of the step planned last that were computed before it; not of those that are gone."""
    found = ((name, scheduler.requests.get(name), tokens) for name, tokens in output.num_scheduled_tokens.items())
    return {name: request.num_computed_tokens - tokens for name, request, tokens in found if request is not None}


def admitted(output: SchedulerOutput) -> frozenset[str]:
    """Requests that came from the waiting queue in this step."""
    return frozenset((*(new.req_id for new in output.scheduled_new_reqs), *output.scheduled_cached_reqs.resumed_req_ids))


def rough_load(output: SchedulerOutput) -> StepLoad:
    """About what the step computes, without looking at each request."""
    seqs, tokens = len(output.num_scheduled_tokens), output.total_num_scheduled_tokens
    return StepLoad(tokens - seqs, 0.0, seqs, 0, seqs)


def load_of(output: SchedulerOutput, computed: Mapping[str, int]) -> StepLoad:
    """What the step computes. One token behind others counts as a decode, whatever it is."""
    chunks = decodes = contexts = 0
    attention = 0.0
    for name, tokens in output.num_scheduled_tokens.items():
        before = computed.get(name, 0)
        if tokens == 1 and before > 0:
            decodes, contexts = decodes + 1, contexts + before
        else:
            chunks += tokens
            attention += tokens * (before + tokens / 2)
    return StepLoad(chunks, attention, decodes, contexts, len(output.num_scheduled_tokens))
