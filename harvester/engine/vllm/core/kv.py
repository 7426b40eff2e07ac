"""How vLLM's KV cache manager counts the blocks of a request, in the brain's form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from harvester.policy.kv.groups import Group, KvGroups
from harvester.policy.view import Running
from harvester.policy.waiting import WaitingView, WithOtherBlocks

PROBE_BLOCKS = 16  # a group that asks for fewer for so many blocks of tokens has a bound: a state, or a ring
MAX_LOOKED = 16  # waiting requests whose prompts are looked up in the prefix cache in a step
MAX_FOUND = 1024  # cached blocks after which no further prompt is looked up: 16 prompts of 30,000 cached tokens would take 20 ms
LONG_TOKENS = (1 << 24) - 1  # longer than any window


def groups_of(kv_cache_manager: Any, block_tokens: int) -> KvGroups:
    """The KV cache groups of the model. ``block_tokens``: of the only group, if there is one.

    A model with one group is counted as if it kept all of its KV: with a sliding window it may hold less.
    """
    managers = kv_cache_manager.coordinator.single_type_managers
    return KvGroups.one(block_tokens) if len(managers) <= 1 else KvGroups([_group(manager) for manager in managers])


class Prefixes:
    """The KV blocks at the beginning of requests, which several may hold.

    How many tokens are shared is told by a group that keeps all blocks, or by the first group if none does.
    """

    def __init__(self, kv_cache_manager: Any, kv: KvGroups) -> None:
        managers = kv_cache_manager.coordinator.single_type_managers
        freeing = [bool(manager.get_num_skipped_tokens(LONG_TOKENS)) for manager in managers]
        self.kv_cache_manager, self.kv, self._group = kv_cache_manager, kv, freeing.index(False) if False in freeing else 0
        self._block_tokens = [int(manager.block_size) for manager in managers]
        self._freeing = [place for place, is_freeing in enumerate(freeing) if is_freeing]

    def taken_blocks(self, name: str, tokens: int, newcomers: int) -> int:
        """KV blocks that left the pool, or will, for a request with so many tokens. ``newcomers``: requests that its step admitted.

        A window or a state of the shared beginning counts too, where no request that ran before holds it any more: it was only cached.
        """
        shared, whole = self.shared_tokens(name, newcomers), self.kv.admitted(tokens)
        if not shared:
            return whole
        blocks, sizes = self.kv_cache_manager.get_blocks(name).blocks, self._block_tokens
        found = sum([_of_newcomers(blocks[place][: shared // sizes[place]], newcomers) for place in self._freeing])
        return min(whole, self.kv.admitted(tokens, shared) + found)

    def shared_tokens(self, name: str, newcomers: int) -> int:
        """Tokens at the beginning of a request whose KV blocks more requests hold than the ``newcomers`` of its step; O(log blocks).

        Who holds a block holds all before it. Blocks that only newcomers hold came out of the free ones. A window's blocks begin with
        vLLM's null block: nobody is counted as its holder.
        """
        if not self._block_tokens:
            return 0  # a model without KV
        blocks = self.kv_cache_manager.get_blocks(name).blocks[self._group]
        first = bisect_left(blocks, True, key=lambda block: not block.is_null)
        end = bisect_left(blocks, True, first, key=lambda block: block.ref_cnt <= newcomers)
        return self._block_tokens[self._group] * end if end > first else 0


def _of_newcomers(blocks: Sequence[Any], newcomers: int) -> int:
    """How many of the last ``blocks``, up to a null block, only ``newcomers`` hold."""
    count = 0
    for block in reversed(blocks):
        if block.is_null:
            break
        count += block.ref_cnt <= newcomers
    return count


def _group(manager: Any) -> Group:
    one, asked = (
        manager.get_num_blocks_to_allocate("", tokens, [], 0, 0, tokens, apply_admission_cap=True)
        for tokens in (1, PROBE_BLOCKS * manager.block_size)
    )
    manager.req_to_blocks.pop("", None)  # one kind of manager makes an entry for each request it is asked about
    skipped, most = manager.get_num_skipped_tokens(LONG_TOKENS), manager.max_admission_blocks_per_request
    if most is None and asked < PROBE_BLOCKS:
        most = asked
    return Group(manager.block_size, LONG_TOKENS - skipped if skipped else None, most, max(0, one - 1))


def with_shared(waiting: WaitingView, requests: Mapping[str, Any], kv_cache_manager: Any, short_blocks: int) -> WaitingView:
    """``waiting``, the first of them with the KV blocks that vLLM takes from the pool to admit them.

    A prompt shares the blocks of its prefix that running requests hold. Cached blocks that nobody holds come out of the free ones; a
    recurrent state found there is taken beside the request's own. Asked again in each step: what is shared may be gone in the next. No
    more are looked up once all ``short_blocks`` that lack are shared.
    """
    most = kv_cache_manager.block_pool.num_gpu_blocks  # vLLM asks for more where a state was cached in the step before: for one step
    counted: dict[str, int] = {}
    found = 0
    for one in islice(waiting, MAX_LOOKED):
        if short_blocks <= 0 or found >= MAX_FOUND:
            break
        taken, cached = _taken(requests[one.name], kv_cache_manager)
        counted[one.name] = one.blocks if taken > most else taken
        short_blocks -= one.blocks - counted[one.name]
        found += cached
    return WithOtherBlocks(waiting, counted)


def _taken(request: Any, kv_cache_manager: Any) -> tuple[int, int]:
    """Blocks as `KVCacheManager.allocate_slots` counts them where the whole prompt must fit, and how many were found in the cache."""
    coordinator, tokens = kv_cache_manager.coordinator, request.num_tokens
    found, cached = kv_cache_manager.empty_kv_cache_blocks.blocks, 0
    if kv_cache_manager.prefix_cache_lookup_enabled(request):
        found, cached, _ = coordinator.find_longest_cache_hit(request.block_hashes, tokens - 1)
    end = max(request.num_prompt_tokens, tokens - 1)
    asked = (request.request_id, tokens, found, 0, cached, cached, tokens)
    return int(coordinator.get_num_blocks_to_allocate(*asked, apply_admission_cap=True, prefill_end=end)), sum(map(len, found))


class OwnBlocks:
    """A `harvester.policy.view.Freeing` over vLLM's blocks: those that nobody holds once the requests asked for so far lose theirs."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._holders: dict[int, int] = {}  # how many holders are left, by block

    def __call__(self, one: Running) -> int:
        freed = 0
        for group in self._manager.get_blocks(one.name).blocks:
            for block in group:
                if not block.is_null:
                    left = self._holders[block.block_id] = self._holders.get(block.block_id, block.ref_cnt) - 1
                    freed += left == 0
        return freed
