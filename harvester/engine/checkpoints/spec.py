"""vLLM's offloading spec with our account of the host blocks; on CPU with our copier, on CUDA with vLLM's (own stream, pinned memory)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from harvester.engine.checkpoints.copier import HostCopier
from harvester.policy.hostpool import HostPool


class HostManager(OffloadingManager):  # type: ignore[misc]
    """vLLM's view of the pool. A request's id is the owner; the planner tells the ends of copies, by slot, to the pool itself."""

    def __init__(self, slots: int) -> None:
        self.pool: HostPool[bytes] = HostPool(slots)
        self.protected: Collection[str] = ()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        ready = self.pool.state(key)
        if ready is None:
            return LookupResult.MISS
        return LookupResult.HIT if ready else LookupResult.HIT_PENDING

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return CPULoadStoreSpec(self.pool.load(req_context.req_id, keys))

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        slots = self.pool.store(req_context.req_id, list(keys), self.protected)
        if slots is None:
            return None
        return PrepareStoreOutput(list(slots), CPULoadStoreSpec(list(slots.values())), [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.pool.release(req_context.req_id)

    def reset_cache(self) -> None:
        self.pool.clear()


class CheckpointSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """Imported by name in the engine core and in the workers (``spec_name``)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._manager: HostManager | None = None
        self._worker: OffloadingWorker | None = None
        self.verify = bool(self.extra_config.get("verify", False))
        self.offload_prompt_only = False

    def get_manager(self) -> HostManager:
        if self._manager is None:
            self._manager = HostManager(self.num_chunks)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            self._worker = HostCopier(kv_caches, self.num_chunks, self.verify)
        return self._worker
