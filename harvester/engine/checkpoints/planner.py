"""The engine core's half of the connector: which blocks are copied to the host in a step, and what a preempted request gets back.

vLLM's stores a block in the step that fills it. Here a block is stored when the step that filled it has been answered: a step may end
early, and what it was to fill is never written. Requests are given blocks to store by `grant`; one that is preempted saves what little is
missing at once, the partly filled block too, before its blocks are overwritten.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler, TransferJobStatus
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from harvester.engine.checkpoints.wish import Done, StepWish, Tail
from harvester.engine.checkpoints.worker.copies import EndedCopies, StepCopies
from harvester.engine.vllm.reads import is_offline
from harvester.policy.kv.checkpoint import to_save
from harvester.policy.kv.hostpool import HostPool

log = logging.getLogger(__name__)


class Planner(OffloadingConnectorScheduler):  # type: ignore[misc]
    """Models with one kind of full attention only; others get no checkpoints."""

    def __init__(self, spec: Any, vllm_config: Any, kv_cache_config: Any) -> None:
        super().__init__(spec, vllm_config, kv_cache_config)
        self.pool: HostPool[bytes] = self.manager.pool
        self._current_batch_jobs_to_flush: set[int]
        self.wish = StepWish()
        self.done = Done()
        self.tails = bool(spec.extra_config.get("partial_blocks", True))
        self.slot_bytes = spec.kv_bytes_per_chunk
        self.block_tokens = self.config.kv_group_configs[0].tokens_per_block
        self.able = len(self.config.kv_group_configs) == 1 and not self._sliding_window_groups and self.config.blocks_per_chunk == 1
        if not self.able:
            log.warning("KV checkpoints are off: the model has more than one kind of attention")
        self._victims: dict[str, int] = {}  # preempted since the last step: tokens whose KV is computed
        self._tails: dict[str, Tail] = {}
        self._slots: dict[int, list[int]] = {}  # host slots of each job in flight
        self.began_s: dict[str, float] = {}  # when requests began to be read back
        self.failed_loads: set[str] = set()  # requests, since they were last asked for
        self._failed: set[int] = set()  # jobs in flight that failed on some rank

    # What may be stored

    def saved(self, request_id: str) -> int:
        """Full blocks of the request, from its first, that are on the host or on the way."""
        tail = self._tails.get(request_id)
        return int(self.pool.held(request_id)) - (tail is not None and self.pool.state(tail.key) is not None)

    def preempted(self, request: Request) -> None:
        """It loses its KV, which is whole but for what is in flight. Called before vLLM takes its blocks."""
        self._victims[request.request_id] = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self.pool.touch(request.request_id)

    def _calc_num_offloadable_tokens(self, req_status: Any, num_computed_tokens: int) -> int:
        request = req_status.req
        granted = self.wish.grants.get(request.request_id, 0)
        answered = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        upto = (req_status.group_states[0].next_stored_chunk_idx + granted) * self.block_tokens
        return int(min(super()._calc_num_offloadable_tokens(req_status, num_computed_tokens), answered, upto))

    def _build_store_jobs(self, scheduler_output: SchedulerOutput) -> dict[int, TransferJob]:
        jobs = {}
        for request_id in self.wish.grants if self.able else ():
            status = self._req_status.get(request_id)
            if status is None or status.req.is_finished() or request_id in self._victims or self._loading(status):
                continue
            self._forget_tail(request_id)
            status.group_states[0].next_stored_chunk_idx = self.saved(request_id)
            self.manager.protected = self.wish.grants.keys()
            one = SimpleNamespace(num_scheduled_tokens={request_id: 0}, finished_req_ids=())
            jobs.update(super()._build_store_jobs(one))
        waited, most = self.done.waited_blocks, self.wish.wait_blocks
        for request_id, tokens in self._victims.items():
            jobs.update(self._save(request_id, tokens, waited + most - self.done.waited_blocks))
        self._victims = {}
        self._note_slots({number: job.dst_spec for number, job in jobs.items()})
        return jobs

    def _loading(self, status: Any) -> bool:
        return any(not self._jobs[number].is_store for number in status.transfer_jobs)

    def _note_slots(self, specs: Mapping[int, Any]) -> None:
        for number, spec in specs.items():
            self._slots[number] = [int(slot) for slot in spec.block_ids]

    # What a victim saves at once

    def _save(self, request_id: str, tokens: int, most: int) -> dict[int, TransferJob]:
        """A job for the last blocks of a preempted request, at most so many, which the workers do before anything else."""
        status = self._req_status.get(request_id)
        if status is None or status.req.is_finished() or not self.able or self._loading(status):
            return {}
        status.update_offload_keys()
        state, blocks = status.group_states[0], tokens // self.block_tokens
        old = self._tails.get(request_id)
        if old is not None and (old.tokens != tokens or self.pool.state(old.key) is None):
            self._forget_tail(request_id)
        saved = self.saved(request_id)
        tail_tokens = tokens % self.block_tokens if self.tails and request_id not in self._tails else 0
        full, with_tail = to_save(blocks, saved, tail_tokens, most)
        keys = list(state.offload_keys[saved : saved + full])
        if with_tail:
            keys.append(self._tail_key(status.req, tokens))
        sources = state.block_ids[saved : saved + len(keys)]
        if not keys or len(sources) < len(keys):
            return {}
        output = self.manager.prepare_store(keys, status.req_context)
        if output is None:
            return {}
        if with_tail:
            self._tails[request_id] = Tail(tokens, keys[-1])
        wanted = set(output.keys_to_store)
        return self._job(status, [block for key, block in zip(keys, sources, strict=True) if key in wanted], saved, output)

    def _job(self, status: Any, sources: list[int], first: int, output: Any) -> dict[int, TransferJob]:
        if not sources:
            return {}
        number = self._generate_job_id()
        status.transfer_jobs.add(number)
        self._jobs[number] = TransferJobStatus(
            status.req.request_id, self.config.num_workers, set(output.keys_to_store), is_store=True, deferred_fence_block_ids=sources
        )
        self._current_batch_jobs_to_flush.add(number)
        self.done.waited_blocks += len(sources)
        source = GPULoadStoreSpec(sources, group_sizes=[len(sources)], block_indices=[first])
        return {number: TransferJob(status.req.request_id, source, output.store_spec)}

    def _tail_key(self, request: Request, tokens: int) -> bytes:
        """No other request finds it: its tokens are not hashed with what else decides their KV (adapters, images)."""
        return hashlib.sha256(f"{request.request_id} {tokens}".encode()).digest() + (0).to_bytes(4, "big")

    def _forget_tail(self, request_id: str) -> None:
        tail = self._tails.pop(request_id, None)
        if tail is not None:
            self.pool.forget(request_id, tail.key)

    # What it gets back

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int, max_num_new_tokens: int | None = None) -> Any:
        """Only a preempted request reads host memory: for a new one a step spent waiting is worth more than a prefix."""
        if request.num_preemptions == 0 or not self.able or request.request_id in self._victims:
            status = self._req_status[request.request_id]
            if request.request_id in self._victims or status.transfer_jobs:
                return None, False
            for state in status.group_states:
                state.block_ids.clear()
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens, max_num_new_tokens)

    def _lookup(self, req_status: Any, max_num_new_tokens: int | None = None) -> int | None:
        """Whole blocks, and the partly filled one where it is the next."""
        hit: int | None = self._lookup_complete_chunks(req_status, max_num_new_tokens)
        req_status.partial_tail_boundary = None
        tail = self._tails.get(req_status.req.request_id)
        if hit is None or tail is None or max_num_new_tokens is not None:
            return hit
        local = int(req_status.num_locally_computed_tokens)
        whole = local + hit
        if not whole < tail.tokens < whole + self.block_tokens or tail.tokens > req_status.req.num_tokens:
            return hit
        ready = self.pool.state(tail.key)
        if ready is None:
            return hit
        if not ready:
            return None
        req_status.partial_tail_boundary = tail.tokens
        return tail.tokens - local

    def _make_boundary_key(self, request: Request, group_idx: int, boundary_tokens: int, req_context: Any) -> Any:
        return self._tails[request.request_id].key

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            number = max(self._current_batch_load_jobs)
            self._note_slots({number: self._current_batch_load_jobs[number].src_spec})
            self.began_s[request.request_id] = time.monotonic()
            if not is_offline(request):
                self.wish.allowed = self.wish.awaited

    # A step

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepCopies:
        preempted = scheduler_output.preempted_req_ids
        # One that was put back between two steps may be read back in the same step: it has no store to wait for.
        scheduler_output.preempted_req_ids = {
            name for name in preempted or () if (status := self._req_status.get(name)) is not None and not self._loading(status)
        }
        try:
            meta = super().build_connector_meta(scheduler_output)
        finally:
            scheduler_output.preempted_req_ids = preempted
        for request_id in scheduler_output.finished_req_ids or ():
            self._tails.pop(request_id, None)
        allowed = self.wish.allowed if scheduler_output.total_num_scheduled_tokens else None
        self.wish = StepWish(wait_blocks=self.wish.wait_blocks)
        return StepCopies(meta.load_jobs, meta.store_jobs, meta.jobs_to_flush, allowed)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, EndedCopies):
            self._settle(meta)
        super().update_connector_output(connector_output)

    def _settle(self, meta: EndedCopies) -> None:
        """Tell the pool, by slot, of the jobs that have now ended on all ranks."""
        for number, count in meta.completed_jobs.items():
            job = self._jobs.get(number)
            if job is None or number < self._stale_job_threshold:
                continue
            failed = number in meta.failed_jobs
            self._failed |= {number} if failed else set()
            if job.pending_count > count:
                continue
            ok = number not in self._failed
            self._failed.discard(number)
            slots = self._slots.pop(number)
            (self.pool.stored if job.is_store else self.pool.loaded)(slots, ok)
            self.done.failed += not ok
            if job.is_store:
                self.done.stored_blocks += len(slots)
            else:
                self.done.loaded_blocks += len(slots)
                self.failed_loads |= set() if ok else {job.req_id}
        self._count(meta)

    def _count(self, meta: EndedCopies) -> None:
        store, load = meta.transfer_stats.store, meta.transfer_stats.load
        self.done.add(Done(stored_bytes=store.bytes, loaded_bytes=load.bytes, store_s=store.time, load_s=load.time))

    def reset_cache(self) -> None:
        flush = set(self._current_batch_jobs_to_flush)
        self._current_batch_jobs_to_flush.clear()
        super().reset_cache()
        self._current_batch_jobs_to_flush.update(flush)
        self._tails.clear()
        self._slots.clear()
        self._failed.clear()
        self._victims.clear()
