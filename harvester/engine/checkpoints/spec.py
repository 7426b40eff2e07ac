"""vLLM's offloading spec with our account of the host blocks and our copies: by a thread on CPU, by the device on CUDA.

Each rank has host memory of its own, for its own pages. vLLM's has one region for all ranks in ``/dev/shm``, mapped and pinned at start.
"""

from __future__ import annotations

import logging
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

from harvester.engine.checkpoints.worker.copier import HostCopier
from harvester.engine.checkpoints.worker.device import CudaDevice
from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier
from harvester.engine.checkpoints.worker.growth import Growth
from harvester.engine.checkpoints.worker.room import GIB
from harvester.engine.checkpoints.worker.transfers import StepCopier
from harvester.policy.kv.hostpool import HostPool

log = logging.getLogger(__name__)


class HostManager(OffloadingManager):  # type: ignore[misc]
    """vLLM's view of the pool. A request's id is the owner; the planner tells the ends of copies, by slot, to the pool itself."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.pool: HostPool[bytes] = HostPool(slots)
        self.growth = Growth(self.pool, slot_bytes)
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
        self.growth.prepare(len(keys))
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
        self._worker: StepCopier | None = None
        self.verify = bool(self.extra_config.get("verify", False))
        self.offload_prompt_only = False

    def _uses_shared_region(self) -> bool:
        """Asked by vLLM's: with a region for all ranks one of them would store for the others what is the same on all (MLA's latents)."""
        return False

    def get_manager(self) -> HostManager:
        if self._manager is None:
            if self.num_chunks == 0:
                given = int(self.extra_config["cpu_bytes_to_use"]) / GIB
                log.warning("KV checkpoints hold nothing: a KV block is more than their %.2f GiB; give checkpoint.host_gib", given)
            self._manager = HostManager(self.num_chunks, self.kv_bytes_per_chunk)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            if current_platform.is_cpu():
                self._worker = HostCopier(kv_caches, self.num_chunks, self.verify)
            else:
                device = CudaDevice(kv_caches.tensors[0].tensor.device)
                self._worker = DeviceCopier(kv_caches, self.num_chunks, device, self.verify)
        return self._worker
