"""The KV connector that vLLM loads by name, on its public base class: translates vLLM's calls for harvester's planner and copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorTransferResults, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.utils import get_pp_indices
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVCacheConfig, UniformTypeKVCacheSpecs, group_kernel_blocks
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput

from harvester.engine.checkpoints.jobs import CopyReport, StepOrders
from harvester.engine.checkpoints.layout import HostLayout, StepBlocks
from harvester.engine.checkpoints.planner import Planner
from harvester.engine.checkpoints.worker.copier import HostCopier
from harvester.engine.checkpoints.worker.copies import CopyWorker
from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier
from harvester.engine.checkpoints.worker.layout import Pages, in_a_row
from harvester.engine.checkpoints.worker.transfers import StepCopier
from harvester.engine.vllm.platform import CUDA_CALLS, on_cpu
from harvester.engine.worker.device import CudaCopyDevice

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

PAGE_BYTES = 4096  # in the account of host memory, a slot is a multiple of it


@dataclass
class StepCopies(StepOrders, KVConnectorMetadata):
    """From the planner to the workers, with a step."""


@dataclass
class EndedCopies(CopyReport, KVConnectorWorkerMetadata):
    """From the workers to the planner, with the answer of a step."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> EndedCopies:
        assert isinstance(other, EndedCopies)
        self.take(other)
        return self


class CheckpointConnector(KVConnectorBase_V1, SupportsHMA):
    """Imported by name in the engine core and in the workers (``kv_connector``). ``planner``: in the core; ``copies``: in a worker."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        assert vllm_config.kv_transfer_config is not None
        self._caches, self.extra = kv_cache_config, vllm_config.kv_transfer_config.kv_connector_extra_config
        self.host = host_layout(vllm_config, kv_cache_config)
        self._group = kv_cache_config.prefix_cacheable_group_ids[0]
        self.planner = Planner(self.host) if role == KVConnectorRole.SCHEDULER else None
        self.copies: CopyWorker | None = None
        self._orders: StepOrders | None = None
        self._told = KVConnectorTransferResults()
        self._told_meta: EndedCopies | None = None

    # Both sides

    @property
    def requires_kv_delivery(self) -> bool:
        """False: KV that has no checkpoint is computed again."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Layers are separate, and each block's page is contiguous."""
        return "LBHNC"

    def shutdown(self) -> None:
        if self.copies is not None:
            self.copies.shutdown()

    # In the engine core

    def on_new_request(self, request: Request) -> None:
        self._in_core().came(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        found = self._in_core().readable_tokens(request, num_computed_tokens)
        return found, bool(found)

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:
        return {CacheHitSource.HOST: num_external_tokens} if num_external_tokens else {}

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._in_core().load(request, blocks.blocks[self._group], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepCopies:
        orders = self._in_core().plan_step(
            StepBlocks(
                given=_given(scheduler_output, self._group),
                copied_to=[copy.dst_block_id for copy in scheduler_output.kv_cache_block_copies or ()],
                preempted=scheduler_output.preempted_req_ids or (),
                finished=scheduler_output.finished_req_ids,
                tokens=scheduler_output.total_num_scheduled_tokens,
            )
        )
        return StepCopies(orders.loads, orders.stores, orders.flush, orders.allowed)

    def has_pending_push_work(self) -> bool:
        return self._in_core().copies_in_flight

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, EndedCopies):
            self._in_core().report(meta)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._in_core().ended(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool:
        self._in_core().reset()
        return True

    def _in_core(self) -> Planner:
        assert self.planner is not None, "called in a worker"
        return self.planner

    # In a worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self.host.supports_checkpoints:
            self.copies = CopyWorker(self.copier(pages_of(self._caches, kv_caches), self.host.slots, bool(self.extra.get("verify"))))

    def copier(self, pages: list[Pages], slots: int, verify: bool) -> StepCopier:
        """What copies: a thread on CPU, the copy engines on CUDA. Each rank has host memory of its own, for its own pages."""
        if on_cpu():
            return HostCopier(pages, slots, verify)
        return DeviceCopier(pages, slots, CudaCopyDevice(pages[0].tensor.device, CUDA_CALLS), verify)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, StepCopies)
        if self.copies is not None:
            self.copies.before_forward(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepCopies)
        self._orders = connector_metadata

    def start_load_kv(self, forward_context: ForwardContext | None, **kwargs: Any) -> None:
        """Called after the forward pass, because the transfers of the step are asynchronous."""
        if self.copies is not None and self._orders is not None:
            self.copies.after_forward(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: no step reads KV that is still being loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save by layer: blocks are stored whole, when their step has been answered."""

    def wait_for_save(self) -> None:
        """Nothing to wait for: a block being copied is not given away before its copy is reported."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._told = KVConnectorTransferResults()
        if self.copies is not None:
            found = self.copies.received()
            self._told = KVConnectorTransferResults(finished_recving=found.requests, failed_recving=found.failed)
        return self._told

    def build_connector_worker_meta(self) -> EndedCopies | None:
        report = self.copies.report() if self.copies is not None else None
        self._told_meta = None if report is None else EndedCopies(report.ended, report.failed, report.stored, report.loaded)
        return self._told_meta

    def take_report(self) -> KVConnectorOutput:
        """What the step that ends now reported to Model Runner V1, which loses it if the step ends early. Each report is given once."""
        told, self._told = self._told, KVConnectorTransferResults()
        meta, self._told_meta = self._told_meta, None
        return KVConnectorOutput(finished_recving=told.finished_recving, failed_recving=told.failed_recving, kv_connector_worker_meta=meta)


def _given(output: SchedulerOutput, group: int) -> Iterator[tuple[str, list[int] | None, bool]]:
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.block_ids[group], False
    cached = output.scheduled_cached_reqs
    for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
        yield name, None if blocks is None else blocks[group], name in cached.resumed_req_ids


def host_layout(vllm_config: VllmConfig, caches: KVCacheConfig) -> HostLayout:
    """The layout of an engine whose ``kv_transfer_config`` is `harvester.engine.checkpoints.budget.transfer_config`."""
    found = build_offloading_config(vllm_config, caches)
    groups, layout = caches.prefix_cacheable_group_ids, vllm_config.cache_config.kv_cache_layout
    kinds = [spec for number in groups for spec in _layer_specs(caches, number).values()]
    workers = found.parallel.world_size
    largest_bytes = found.worker_kv_bytes_per_block * _largest_stage(vllm_config, len(kinds)) // max(1, len(kinds))
    slot_bytes = -(-largest_bytes * workers // PAGE_BYTES) * PAGE_BYTES
    return HostLayout(
        slots=int(found.extra_config["cpu_bytes_to_use"]) // slot_bytes if slot_bytes else 0,
        slot_bytes=slot_bytes,
        num_workers=workers,
        block_tokens=found.groups[0].tokens_per_block,
        hash_tokens=found.cache.tokens_per_hash,
        partial_blocks=bool(found.extra_config.get("partial_blocks", True)),
        # A ring beside full attention, which is in no prefix cache, would have to be copied with a block that is partly filled.
        supports_checkpoints=len(caches.kv_cache_groups) == len(groups) == 1
        and all(isinstance(kind, FullAttentionSpec) for kind in kinds)
        and (layout is None or vllm_config.cache_config.get_resolved_kv_cache_layout().is_block_compact),
        prefix_caching=vllm_config.cache_config.enable_prefix_caching,
    )


def _largest_stage(vllm_config: VllmConfig, layers: int) -> int:
    """Layers of the largest pipeline stage; ``layers``: of this one. All stages and the scheduler must count the same slots."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages == 1:
        return layers
    spans = [get_pp_indices(vllm_config.model_config.get_total_num_hidden_layers(), stage, stages) for stage in range(stages)]
    return max(end - begin for begin, end in spans)


def _layer_specs(caches: KVCacheConfig, number: int) -> dict[str, Any]:
    group = caches.kv_cache_groups[number]
    spec = group.kv_cache_spec
    return spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else dict.fromkeys(group.layer_names, spec)


def pages_of(caches: KVCacheConfig, tensors: dict[str, torch.Tensor]) -> list[Pages]:
    """The KV caches of a model with one kind of attention. Layers that share memory are there once."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    for name, spec in _layer_specs(caches, caches.prefix_cacheable_group_ids[0]).items():
        assert isinstance(spec, AttentionSpec)
        by_block = group_kernel_blocks(tensors[name], caches.num_blocks)
        item_bytes = by_block.element_size()
        shape, stride = (caches.num_blocks, spec.unpadded_page_size_bytes), (by_block.stride(0) * item_bytes, 1)
        page = torch.empty(0, dtype=torch.int8, device=by_block.device)
        page.set_(by_block.untyped_storage(), by_block.storage_offset() * item_bytes, shape, stride)
        found[page.data_ptr(), stride[0]] = page
    return in_a_row(found.values())
