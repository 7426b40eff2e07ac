"""What vLLM's scheduler holds, in the brain's form: all reads of its requests, queues and KV blocks are here and in `kv`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from harvester.core import PRIORITY_OFFLINE
from harvester.engine.core.steps import Step
from harvester.engine.shared.settings import NO_SLO, Slo
from harvester.engine.vllm.core.kv import OwnBlocks, Prefixes, with_shared
from harvester.policy.kv.groups import KvGroups
from harvester.policy.model.load import StepLoad
from harvester.policy.order.offline import PREFIX_TOKENS, OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.step.batch import Batch
from harvester.policy.step.view import Guarantee
from harvester.policy.view import AdapterPlaces, EngineView, Running
from harvester.policy.waiting import Waiting
from jobs.hint import SchedulingHint

TASK_ARG = "task"  # in a request's `vllm_xargs`: a client's name for requests that share a template
MAX_TASK_CHARS = 64


def is_offline(request: Request) -> bool:
    return bool(request.priority >= PRIORITY_OFFLINE)


def adapter_of(request: Request) -> int:
    """Number of the request's LoRA adapter; 0: none."""
    return int(request.lora_request.lora_int_id) if request.lora_request else 0


def extra_of(request: Request) -> Mapping[str, Any]:
    """`vllm_xargs` of the request; for a pooling request, the arguments that a job's row gave it."""
    if request.pooling_params is not None:
        return request.pooling_params.extra_kwargs or {}
    params = request.sampling_params
    return (params.extra_args or {}) if params is not None else {}


def final_blocks(request: Request, kv: KvGroups) -> int:
    """KV blocks the request holds when it has made its last allowed token."""
    return kv.held(request.num_prompt_tokens + request.max_tokens)


def waiting_blocks(request: Request, kv: KvGroups) -> int:
    """KV blocks it needs to be admitted, if none of them is cached."""
    return kv.admitted(request.num_tokens)


def answered(request: Request) -> int:
    """Tokens whose KV is computed, without those in flight."""
    return max(0, int(request.num_computed_tokens - request.num_in_flight_tokens))


def row_of(request: Request, kv: KvGroups) -> OfflineRow:
    """A waiting offline request in the brain's form. What it says about its job may come from a chat client, so it is bounded."""
    hint = SchedulingHint.from_args(extra_of(request))
    return OfflineRow(
        name=request.request_id,
        job=hint.job,
        begun=request.num_preemptions > 0,
        weight=hint.total_weight,
        guarantee=Guarantee(hint.share, hint.above_slo) if hint.share > 0.0 else None,
        priority=request.priority,
        slice_id=hint.window,
        prefix=tuple((request.prompt_token_ids or ())[:PREFIX_TOKENS]),
        arrival_s=request.arrival_time,
        final_blocks=final_blocks(request, kv),
        tokens=request.num_tokens,
        blocks=waiting_blocks(request, kv),
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        expected_tokens=hint.answer_tokens,
        adapter=adapter_of(request),
    )


def kind_of(request: Request) -> str:
    """Requests of one kind have answers of similar length: of one task (`TASK_ARG`) or SLO class, on one LoRA adapter or none."""
    extra = extra_of(request)
    task = next((str(extra[name]) for name in (TASK_ARG, "slo_class") if extra.get(name) is not None), "")
    return f"{task[:MAX_TASK_CHARS]}\n{request.lora_request.lora_name if request.lora_request else ''}"


def answer_tokens(request: Request) -> int | None:
    """Length of an answer that came to its end or its limit; None: it was aborted or failed."""
    whole = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
    return int(request.num_output_tokens) if whole else None


def waits_for_grammar(request: Request) -> bool:
    """Whether vLLM passes the request over, since the grammar of its answer is still being compiled."""
    asked = request.structured_output_request
    return request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR and not (asked and asked.grammar)


def online_request(request: Request, kv: KvGroups, slo: Slo, shift_s: float) -> OnlineRequest:
    """An online request that has come. ``shift_s``: from wall to monotonic clock."""
    return OnlineRequest(
        name=request.request_id,
        priority=request.priority,
        prompt_tokens=request.num_prompt_tokens,
        kind=kind_of(request),
        max_tokens=request.max_tokens,
        due_s=request.arrival_time + shift_s + slo.ttft_s,
        tpot_s=slo.tpot_s,
        blocks=waiting_blocks(request, kv),
        arrived_s=request.arrival_time + shift_s,
    )


def waiting(request: Request, kv: KvGroups, slo: Slo, shift_s: float) -> Waiting:
    """An online request that waits. ``shift_s``: from wall to monotonic clock."""
    due_s = request.arrival_time + shift_s + slo.ttft_s
    return Waiting(request.request_id, request.num_tokens, waiting_blocks(request, kv), due_s)


def running(requests: Iterable[Request], kv: KvGroups, max_tokens: int, slos: Mapping[str, Slo], shift_s: float) -> list[Running]:
    """Each request as it is once the steps planned so far are done. ``max_tokens``: of any step; ``shift_s``: from wall to monotonic clock.

    Without speculative decoding: the one token that a step planned but not answered will add is not counted by vLLM yet.
    A step looks at thousands of requests: one pass, without a call for each.
    """
    found, size, held, step_blocks, one_group = [], kv.block_tokens, kv.held, kv.step, kv.is_one
    for request in requests:
        name, computed, offline = request.request_id, request.num_computed_tokens, request.priority >= PRIORITY_OFFLINE
        placeholders, slo = request.num_output_placeholders, slos.get(name, NO_SLO)
        left = request.num_tokens_with_spec + placeholders - computed
        step_tokens = left if left > 0 else 1
        after = computed + (step_tokens if step_tokens < max_tokens else max_tokens)
        blocks_now = -(-computed // size) if one_group else held(computed)
        found.append(
            Running(
                name,
                offline,
                step_tokens,
                blocks_now,
                final_blocks(request, kv) if offline else 0,
                -(-after // size) - blocks_now if one_group else step_blocks(computed, after),
                computed,
                left <= 0 or request.num_output_tokens + placeholders > 0,
                request.arrival_time + shift_s + slo.ttft_s,
                slo.tpot_s,
                0,  # full_blocks
                0,  # unsaved: the checkpoints' `marked` sets both
                request.num_tokens_with_spec - request.num_tokens if step_tokens > 1 else 0,
            )
        )
    return found


def kv_blocks(pool: Any) -> int:
    """The KV blocks that requests can have: all of vLLM's but its null block, which is never free."""
    return int(pool.num_gpu_blocks) - 1


def view(
    scheduler: Any,
    kv: KvGroups,
    rows: list[Running],
    batch: Batch | None,
    now_s: float,
    *,
    max_segments: int,
    stalled: bool,
    chat_only: bool,
) -> EngineView:
    """What the scheduler holds now; ``rows``: of its running requests."""
    manager, waiting = scheduler.kv_cache_manager, scheduler.waiting.seen()
    pool, free_blocks = manager.block_pool, manager.block_pool.get_num_free_blocks()
    short_blocks = waiting.blocks + manager.watermark_blocks + sum([one.blocks_step for one in rows]) - free_blocks
    if waiting.blocks and short_blocks > 0:
        waiting = with_shared(waiting, scheduler.requests, manager, short_blocks)
    loading = list(scheduler.kv_holding_waiting)
    back = [r for r in loading if r.request_id in scheduler.finished_recving_kv_req_ids and not is_offline(r)]
    return EngineView(
        running=rows,
        waiting=waiting,
        free_blocks=free_blocks,
        total_blocks=kv_blocks(pool),
        max_seqs=scheduler.max_num_active_reqs,
        now_s=now_s,
        block_tokens=kv.block_tokens,
        groups=None if kv.is_one else kv,
        watermark_blocks=manager.watermark_blocks,
        max_tokens=scheduler.max_num_scheduled_tokens,
        loading=len(loading),
        loading_online=any(not is_offline(r) for r in loading),
        loading_growth=sum(final_blocks(r, kv) - kv.held(r.num_tokens) for r in loading if is_offline(r)),
        loading_rows={r.request_id: r.num_tokens for r in loading if is_offline(r)},
        returning_tokens=sum(max(1, r.num_tokens - r.num_computed_tokens) for r in back),
        returning_context=sum(r.num_computed_tokens for r in back),
        deferred=len(scheduler.deferred_waiting),
        stalled=stalled,
        item_holders=frozenset(scheduler.encoder_cache_manager.request_cached_ids) if stalled else frozenset(),
        chat_only=chat_only,
        batch=batch,
        freeing=partial(OwnBlocks, manager),
        max_segments=max_segments,
        adapters=adapter_places(scheduler),
    )


def adapter_places(scheduler: Any) -> AdapterPlaces | None:
    """The adapters of the requests that hold KV; None: the engine has no adapters. Those whose KV is read back need their places too."""
    if scheduler.lora_config is None:
        return None
    holders = [(adapter, is_offline(one)) for one in (*scheduler.running, *scheduler.kv_holding_waiting) if (adapter := adapter_of(one))]
    chats = frozenset(adapter for adapter, offline in holders if not offline)
    return AdapterPlaces(scheduler.lora_config.max_loras, frozenset(adapter for adapter, _ in holders), chats)


def registered_blocks(scheduler: Scheduler, computed: dict[str, int]) -> list[tuple[Any, Any]]:
    """KV blocks, with their hashes, that hold tokens after the ``computed`` ones of each request and are in the prefix cache."""
    found = []
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        size, cached = manager.block_size, manager.num_cached_block
        for request_id, tokens in computed.items():
            first, until = tokens // size, cached.get(request_id, 0)
            if first < until:  # rare while a request decodes
                blocks = manager.req_to_blocks.get(request_id, [])[first:until]
                found += [(block, block.block_hash) for block in blocks if block.block_hash is not None]
    return found


def admitted(output: SchedulerOutput) -> frozenset[str]:
    """Requests that came from the waiting queue in this step."""
    return frozenset((*(new.req_id for new in output.scheduled_new_reqs), *output.scheduled_cached_reqs.resumed_req_ids))


def recomputed(scheduler: Scheduler, names: Iterable[str], computed: Mapping[str, int]) -> dict[str, int]:
    """Tokens computed again, in this step and after it, by offline requests that it admitted and that had lost their KV before."""
    found = ((name, scheduler.requests.get(name)) for name in names)
    return {
        name: max(0, request.num_tokens - 1 - computed[name])
        for name, request in found
        if request is not None and request.num_preemptions and is_offline(request) and name in computed
    }


def rough_load(output: SchedulerOutput) -> StepLoad:
    """About what the step computes, without looking at each request."""
    seqs, tokens = len(output.num_scheduled_tokens), output.total_num_scheduled_tokens
    return StepLoad(tokens - seqs, 0.0, seqs, 0, seqs)


def fill_in(scheduler: Scheduler, step: Step, rows: Mapping[str, OfflineRow], prefixes: Prefixes) -> None:
    """Fill in what the step planned last computes, and for whom. ``rows``: the offline requests that have not ended."""
    requests, step.admitted = scheduler.requests, admitted(step.output)
    for name, tokens in step.output.num_scheduled_tokens.items():
        request, row, before = requests.get(name), rows.get(name), 0
        if request is not None:  # else it is gone
            before = step.computed[name] = request.num_computed_tokens - tokens
        if row is not None:
            step.served[row.job] = step.served.get(row.job, 0) + tokens
            continue
        step.online.append(name)
        if request is not None and before + tokens >= request.num_tokens:  # else a part of a prompt or of lost KV: it gets no token
            first = before < request.num_prompt_tokens and not request.num_output_tokens
            step.first_tokens += [name] if first else []
            step.gaps += not first
    for name in step.admitted:
        if name in step.computed and name in rows:
            step.admitted_tokens += requests[name].num_tokens
            step.cached_tokens += step.computed[name]
        elif name in step.computed:
            step.chat_admitted_tokens += requests[name].num_tokens
            step.chat_cached_tokens += step.computed[name]
            step.chat_blocks += prefixes.kv.admitted(requests[name].num_tokens)
            step.chat_taken_blocks += prefixes.taken_blocks(name, requests[name].num_tokens, len(step.admitted))
    step.recomputed = recomputed(scheduler, step.admitted, step.computed)
    step.load = load_of(step.output, step.computed)
    step.online_load = load_of(step.output, step.computed, step.online) if step.served and step.online else StepLoad()


def load_of(output: SchedulerOutput, computed: Mapping[str, int], names: Collection[str] | None = None) -> StepLoad:
    """What the step computes, of the requests in ``names`` or of all. One token after computed ones counts as a decode, whatever it is."""
    counts = output.num_scheduled_tokens
    names = counts if names is None else names
    tokens, before = [counts[name] for name in names], [computed.get(name, 0) for name in names]
    if max(tokens, default=0) == 1 and min(before) > 0:
        return StepLoad(0, 0.0, len(tokens), sum(before), len(tokens))
    chunks = decodes = contexts = 0
    attention = 0.0
    for count, done in zip(tokens, before, strict=True):
        if count == 1 and done > 0:
            decodes, contexts = decodes + 1, contexts + done
        else:
            chunks += count
            attention += count * (done + count / 2)
    return StepLoad(chunks, attention, decodes, contexts, len(tokens))
