"""Every read of vLLM's private attributes, for vLLM 0.32. A test drives them against the installed version."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harvester.core import WorkClass, work_class
from harvester.policy.share import Running, View


def final_blocks(request: Request, block_tokens: int) -> int:
    """KV blocks the request holds when it has made its last allowed token."""
    return int(-(-(request.num_prompt_tokens + request.max_tokens) // block_tokens))


def running(request: Request, block_tokens: int) -> Running:
    offline = work_class(request.priority) is WorkClass.OFFLINE
    return Running(
        offline=offline,
        step_tokens=request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens,
        blocks_now=-(-request.num_computed_tokens // block_tokens),
        blocks_final=final_blocks(request, block_tokens) if offline else 0,
    )


def view(scheduler: Scheduler, online_waiting: list[Request]) -> View:
    """What the scheduler holds now. ``online_waiting``: the online lane of its waiting queue."""
    pool = scheduler.kv_cache_manager.block_pool
    block_tokens = scheduler.block_size
    return View(
        running=[running(request, block_tokens) for request in scheduler.running],
        online_waiting=len(online_waiting),
        online_waiting_blocks=sum(-(-request.num_tokens // block_tokens) for request in online_waiting),
        free_blocks=pool.get_num_free_blocks(),
        total_blocks=pool.num_gpu_blocks,
        max_seqs=scheduler.max_num_active_reqs,
    )
