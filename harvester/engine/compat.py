"""Every read of vLLM's private attributes, for vLLM 0.32. A test drives them against the installed version."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harvester.core import WorkClass, work_class
from harvester.policy.share import Running, View


def final_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks the request holds when it has made its last allowed token."""
    return int(-(-(request.num_prompt_tokens + request.max_tokens) // block_tokens))


def running(request: Request, block_tokens: int, most_tokens: int) -> Running:
    """``most_tokens``: of any step."""
    offline = work_class(request.priority) is WorkClass.OFFLINE
    computed = request.num_computed_tokens
    step_tokens = request.num_tokens_with_spec + request.num_output_placeholders - computed
    blocks_now = -(-computed // block_tokens)
    return Running(
        offline=offline,
        step_tokens=step_tokens,
        blocks_now=blocks_now,
        blocks_final=final_blocks(request, block_tokens) if offline else 0,
        blocks_step=-(-(computed + min(step_tokens, most_tokens)) // block_tokens) - blocks_now,
    )


def view(scheduler: Scheduler, online_waiting: list[Request], offline_next: Request | None, online_idle_s: float) -> View:
    """What the scheduler holds now.

    ``online_waiting``: the online lane of its waiting queue; ``offline_next``: the first of the other; ``online_idle_s``: since a step last
    had online work.
    """
    pool = scheduler.kv_cache_manager.block_pool
    block_tokens, most_tokens = scheduler.block_size, scheduler.max_num_scheduled_tokens
    return View(
        running=[running(request, block_tokens, most_tokens) for request in scheduler.running],
        online_waiting=len(online_waiting),
        online_waiting_blocks=sum(-(-request.num_tokens // block_tokens) for request in online_waiting),
        offline_next_blocks=final_blocks(offline_next, block_tokens) if offline_next else 0,
        free_blocks=pool.get_num_free_blocks(),
        total_blocks=pool.num_gpu_blocks,
        max_seqs=scheduler.max_num_active_reqs,
        online_idle_s=online_idle_s,
    )
