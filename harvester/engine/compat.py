"""Reads of vLLM's private attributes, for vLLM 0.32. A test drives them against the installed version."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harvester.engine.queue import TwoLaneQueue, is_offline
from harvester.engine.settings import Promise
from harvester.policy.latency import StepLoad
from harvester.policy.view import Running, View


def final_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks the request holds when it has made its last allowed token."""
    return int(-(-(request.num_prompt_tokens + request.max_tokens) // block_tokens))


def waiting_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks it needs to be admitted."""
    return int(-(-request.num_tokens // block_tokens))


def running(request: Request, block_tokens: int, most_tokens: int, promise: Promise, rank: int, wall_to_monotonic_s: float) -> Running:
    """``most_tokens``: of any step."""
    offline = is_offline(request)
    computed = request.num_computed_tokens
    step_tokens = request.num_tokens_with_spec + request.num_output_placeholders - computed
    blocks_now = -(-computed // block_tokens)
    return Running(
        offline=offline,
        step_tokens=step_tokens,
        blocks_now=blocks_now,
        blocks_final=final_blocks(request, block_tokens) if offline else 0,
        blocks_step=-(-(computed + min(step_tokens, most_tokens)) // block_tokens) - blocks_now,
        context=computed,
        decoding=request.num_output_tokens + request.num_output_placeholders > 0,
        due_s=request.arrival_time + wall_to_monotonic_s + promise.ttft_s,
        tpot_s=promise.tpot_s,
        rank=rank,
    )


def view(
    scheduler: Scheduler,
    waiting: TwoLaneQueue,
    now_s: float,
    online_idle_s: float,
    ranks: Mapping[str, int],
    promise: Callable[[Request], Promise],
    reserve: tuple[int, int] | None,
    offline_step_s: float,
) -> View:
    """What the scheduler holds now. ``online_idle_s``: since a step last had online work."""
    pool = scheduler.kv_cache_manager.block_pool
    block_tokens, most_tokens = scheduler.block_size, scheduler.max_num_scheduled_tokens
    shift_s = now_s - time.time()
    online = list(waiting.online)
    return View(
        running=[running(r, block_tokens, most_tokens, promise(r), ranks.get(r.request_id, 0), shift_s) for r in scheduler.running],
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
        max_tokens=most_tokens,
        offline_step_s=offline_step_s,
        loading_growth=sum(
            final_blocks(r, block_tokens) - waiting_blocks(r, block_tokens) for r in scheduler.kv_holding_waiting if is_offline(r)
        ),
        reserve=reserve,
    )


def computed_before(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, int]:
    """Tokens of each request of a step just planned that were computed before it."""
    return {name: scheduler.requests[name].num_computed_tokens - tokens for name, tokens in output.num_scheduled_tokens.items()}


def admitted(output: SchedulerOutput) -> frozenset[str]:
    """Requests that came from the waiting queue in this step."""
    return frozenset((*(new.req_id for new in output.scheduled_new_reqs), *output.scheduled_cached_reqs.resumed_req_ids))


def load_of(output: SchedulerOutput, computed: Mapping[str, int]) -> StepLoad:
    """What the step computes. One token behind others counts as a decode, whatever it is."""
    chunks = decodes = contexts = 0
    attention = 0.0
    for name, tokens in output.num_scheduled_tokens.items():
        before = computed[name]
        if tokens == 1 and before > 0:
            decodes, contexts = decodes + 1, contexts + before
        else:
            chunks += tokens
            attention += tokens * (before + tokens / 2)
    return StepLoad(chunks, attention, decodes, contexts, len(output.num_scheduled_tokens))
