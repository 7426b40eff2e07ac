"""Bounds of vLLM beside tokens and KV: adapters in a step, whole images, the encoder cache, and blocks of recurrent state.

vLLM takes for granted that a running request goes on, and that a step has all of its tokens. Here a request may be paused, and keeps what
it holds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from harvester.engine.vllm.core.reads import adapter_of, is_offline
from harvester.policy.admission.adapters import rows_in_the_way
from harvester.policy.view import Plan


def adapters_left(config: Any, running: Iterable[Any], held: Iterable[Any]) -> Any:
    """vLLM's `LoRAConfig` for a step of ``running``. It keeps places for the adapters of those that are ``held`` back."""
    if config is None:
        return None
    kept = {adapter_of(request) for request in held} - {adapter_of(request) for request in running} - {0}
    if not kept:
        return config
    left = copy.copy(config)
    left.max_loras = config.max_loras - len(kept)
    return left


def taken_by_chats(scheduler: Any) -> frozenset[int]:
    """The adapters of the running chats, if these have all places; else empty."""
    adapters = frozenset(adapter_of(request) for request in scheduler.running if not is_offline(request)) - {0}
    return adapters if len(adapters) >= scheduler.lora_config.max_loras else frozenset()


def with_adapters(scheduler: Any, plan: Plan, batch: Sequence[Any], gave_way: Callable[[Iterable[str]], None]) -> Plan:
    """The plan, with rows preempted for the first chat in rank order that waits for them, if it lacks a place for its adapter.

    ``gave_way``: called with the names of these rows.
    """
    if scheduler.lora_config is None or not scheduler.waiting.has_online:
        return plan
    names, waiting = {request.request_id for request in batch}, scheduler.waiting
    idle = (one for name in plan.ranks if name not in names and (one := scheduler.requests.get(name)) is not None)
    turn = next((one for one in idle if not waiting.holds_back(one)), None)
    lost = {*plan.preempt, *plan.swap_out}
    stay = [place for place in range(len(batch)) if place not in lost]
    running = [(adapter_of(batch[place]), is_offline(batch[place])) for place in stay]
    gone = [stay[at] for at in rows_in_the_way(0 if turn is None else adapter_of(turn), running, scheduler.lora_config.max_loras)]
    if not gone:
        return plan
    gave_way([batch[place].request_id for place in gone])

    def left(places: Sequence[int]) -> tuple[int, ...]:
        return tuple(place for place in places if place not in gone)

    return replace(plan, run=left(plan.run), pause=left(plan.pause), sit_out=left(plan.sit_out), preempt=(*plan.preempt, *gone))


def keeps_items_whole(scheduler: Any) -> bool:
    """Whether the step must have its full token budget, since an image is left that the model has to see whole.

    vLLM cuts an image where a step has few tokens left, which it takes for rare. The answer would be wrong, and so would its cached KV.
    """
    return bool(scheduler.scheduler_config.disable_chunked_mm_input) and any(map(_has_items_left, (*scheduler.running, *scheduler.waiting)))


def waits_for_items(scheduler: Any, output: Any, budget_tokens: int) -> bool:
    """Whether a chat with an image got no tokens of a step that had some left, while a row holds part of the encoder cache."""
    holders = scheduler.encoder_cache_manager.request_cached_ids
    if not holders or output.total_num_scheduled_tokens >= budget_tokens:
        return False
    return any(is_offline(request) and request.request_id in holders for request in scheduler.running) and any(
        request.request_id not in output.num_scheduled_tokens
        and request.num_computed_tokens < request.num_prompt_tokens
        and _has_items_left(request)
        and not is_offline(request)
        for request in scheduler.running
    )


class Chunks:
    """Where chunks of prompts end in a model with recurrent layers.

    vLLM caches a recurrent state where a KV block ends, and a block may have over 500 tokens. It lets a chunk end within a block only if
    no step could hold the block, by the token budget; otherwise a chunk of less than a block gets nothing. It compares with the budget of
    the whole step, decodes included: a step that has less left for prompts than a block would never compute any. Here such a chunk ends
    within the block, as in a model whose blocks are wider than its steps, and the next one at the block's end.

    So a chat that begins a block within it has one block at most in the next step. Where the step could hold a block, but other prompts
    filled it, the chat gets nothing, as in vLLM: once. If the next step has no block for it either, it takes what is left. Rows take it
    at once: nobody waits for their first token.
    """

    def __init__(self) -> None:
        self._passed_over = WeakSet[Any]()  # chats that got nothing since they got tokens last

    def tokens(self, scheduler: Any, request: Any, start: int, tokens: int, split: Callable[[], int]) -> int:
        """Tokens of the request's chunk, which begins at ``start``, of the ``tokens`` left. ``split``: vLLM's own answer."""
        found = split()
        if not found and tokens:
            if self._waits(scheduler, request, start):
                self._passed_over.add(request)
                return 0
            found = _within_block(scheduler, tokens, split)
        if self._passed_over:
            self._passed_over.discard(request)
        return found

    def _waits(self, scheduler: Any, request: Any, start: int) -> bool:
        """Whether a request that vLLM gives nothing is left for the next step."""
        block_tokens = scheduler.cache_config.block_size
        if is_offline(request) or request in self._passed_over or start % block_tokens:
            return False
        return bool(block_tokens <= scheduler.max_num_scheduled_tokens - sum(map(_decode_tokens, scheduler.running)))


def _within_block(scheduler: Any, tokens: int, split: Callable[[], int]) -> int:
    budget, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, tokens
    try:
        return split()
    finally:
        scheduler.max_num_scheduled_tokens = budget


def _decode_tokens(request: Any) -> int:
    """Tokens of the request in this step if its prompt was computed before."""
    computed = request.num_computed_tokens
    return 0 if computed < request.num_prompt_tokens else max(0, request.num_tokens_with_spec + request.num_output_placeholders - computed)


class Refused:
    """Watches for a chat that vLLM refuses again though the step had a slot and tokens for it: it lacks KV that the plan did not count.

    One refusal is nothing: vLLM admits nobody in a step in which it preempts.
    """

    def __init__(self) -> None:
        self._name: str | None = None  # of the chat that the last step refused

    def again(self, scheduler: Any, output: Any, budget_tokens: int) -> bool:
        """Whether the step planned last refused the same chat as the one before, while rows hold KV."""
        before, self._name = self._name, _refused(scheduler, output, budget_tokens)
        return self._name is not None and self._name == before and any(map(is_offline, scheduler.running))


def _refused(scheduler: Any, output: Any, budget_tokens: int) -> str | None:
    chat = scheduler.waiting.next_online  # one that vLLM skipped in this step has lost its turn
    if chat is None or scheduler.waiting.holds_back(chat) or _has_items_left(chat) or scheduler.pause_state.value:
        return None  # for reasons of its own, or because the engine is paused
    left = budget_tokens - output.total_num_scheduled_tokens
    has_turn = len(scheduler.running) < scheduler.max_num_active_reqs and left >= min(chat.num_tokens, budget_tokens // 2)
    return str(chat.request_id) if has_turn else None


def _has_items_left(request: Any) -> bool:
    return any(one.mm_position.offset + one.mm_position.length > request.num_computed_tokens for one in request.mm_features)
