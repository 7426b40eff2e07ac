"""What a worker on CUDA is given for its copies, as far as it shows without a GPU."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.device_copies import BLOCKS, SLOTS, layers, load, pages_of, store
from tests.fakes.lagging_device import LaggingDevice

pytestmark = pytest.mark.engine

PAGE_BYTES = 16 * 2 * 4  # keys and values of 16 tokens


def worker_of(monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, ranks: int = 1, replicated: bool = False, verify: bool = False) -> Any:
    """The connector of a worker on CUDA, with a lagging device for the GPU, in a container with 64 MB of ``/dev/shm``."""
    import torch
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.kv_offload import config
    from vllm.v1.kv_offload.cpu import shared_offload_region

    from harvester.engine.vllm import connector as module

    def short(size_bytes: int, **named: Any) -> None:
        assert size_bytes <= 64 << 20, "No space left in /dev/shm"

    monkeypatch.setattr(shared_offload_region, "check_shm_free_space", short)
    monkeypatch.setattr(module, "on_cpu", lambda: False)
    monkeypatch.setattr(module, "CudaCopyDevice", lambda device, calls: LaggingDevice(random.Random(0)))
    extra = {"cpu_bytes_to_use": 1 << 30, "verify": verify}
    host = config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("a", "b"), group_id=0),),
        worker_kv_bytes_per_block=2 * PAGE_BYTES,
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id="test",
        model=config.OffloadingModelConfig("m", "float32"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=config.OffloadingParallelConfig(rank, ranks, ranks, 1, 1, 1, 0, 1, 0, False),
        replicated_layout=replicated,
        canonical_layout=False,
        kv_cache_layout=None,
    )
    monkeypatch.setattr(module, "build_offloading_config", lambda vllm_config, caches: host)
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    caches = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["a", "b"], attention)])
    transfer = SimpleNamespace(kv_connector_extra_config=extra)
    vllm_config = SimpleNamespace(
        kv_transfer_config=transfer,
        cache_config=SimpleNamespace(enable_prefix_caching=True, kv_cache_layout=None),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )
    made = module.CheckpointConnector(vllm_config, KVConnectorRole.WORKER, caches)  # type: ignore[arg-type]
    made.register_kv_caches({name: torch.rand(BLOCKS, PAGE_BYTES // 4) for name in ("a", "b")})
    return made


def test_a_container_with_64_mb_of_shared_memory_has_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(monkeypatch)
    copier = worker.copies.copier
    try:
        assert worker.host.slots * copier.block_bytes > 32 << 20
        copier.submit(store(1, [1], [0]))
        copier.wait({1})
        copier._device.drain()
        assert [result.ok for result in copier.get_finished()] == [True]
    finally:
        worker.shutdown()


def test_verify_is_heeded_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(monkeypatch, verify=True)
    copier: Any = worker.copies.copier
    try:
        copier.submit(store(1, [1], [0]))
        copier.wait({1})
        copier._device.drain()
        assert [result.ok for result in copier.get_finished()] == [True]
        copier.memory.row(0)[0] ^= 1
        copier.submit(load(2, [2], [0]))
        copier.launch()
        copier._device.drain()
        assert [result.ok for result in copier.get_finished()] == [False]
    finally:
        worker.shutdown()


def test_of_kv_that_is_the_same_on_all_ranks_each_stores_its_own_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLA's latents: a rank reads only its own host memory, so that what rank 0 stores is of no use to the others."""
    from harvester.engine.checkpoints.jobs import CopyJob
    from harvester.engine.vllm.connector import StepCopies

    worker = worker_of(monkeypatch, rank=1, ranks=2, replicated=True)
    try:
        worker.handle_preemptions(StepCopies(stores={0: CopyJob("a", [(1, 0)])}))
        assert list(worker.copies.copier.transfers.jobs) == [0]
        assert worker.host.slot_bytes >= 2 * 2 * PAGE_BYTES, "the account of host memory is of both copies"
    finally:
        worker.copies.copier._device.drain()
        worker.shutdown()


class _Stream:
    """A CUDA stream that does what it is given at once; only what the real one has may be asked of it."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.waited: list[Any] = []

    def record_event(self) -> _Event:
        return _Event()

    def wait_event(self, event: _Event) -> None:
        self.waited.append(event)


class _Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timing = enable_timing

    def record(self, stream: _Stream) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: _Event) -> float:
        assert self.timing
        assert end.timing
        return 2.0


def test_the_cuda_device_says_what_pytorch_and_vllm_understand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which names and arguments there are is the real PyTorch's and vLLM's; what they do on a GPU is not seen here."""
    import ctypes
    import inspect
    from contextlib import nullcontext

    import torch
    from vllm import _custom_ops
    from vllm.v1.kv_offload.cpu import host_register

    from harvester.engine.vllm import platform as module
    from harvester.engine.worker.device import CudaCalls, CudaCopyDevice

    # vLLM's worker for CPUs, once imported, has other things in `torch.cuda`.
    for ours, theirs in ((_Stream, torch.cuda.streams.Stream), (_Event, torch.cuda.streams.Event)):
        assert all(hasattr(theirs, name) for name in vars(ours) if not name.startswith("_"))
    signature, compute = inspect.signature(_custom_ops.swap_blocks_batch), _Stream()

    def swap(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named).arguments
        tables = [bound[name] for name in ("src_ptrs", "dst_ptrs", "sizes")]
        assert all(table.dtype == torch.int64 and table.is_contiguous() for table in tables)
        for source, target, size_bytes in zip(*(table.tolist() for table in tables), strict=True):
            ctypes.memmove(target, source, size_bytes)

    monkeypatch.setattr(_custom_ops, "swap_blocks_batch", swap)
    played: dict[str, Any] = {"Stream": _Stream, "Event": _Event, "stream": nullcontext, "current_stream": lambda device: compute}
    for name, one in played.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, one)
    pinned: dict[int, int] = {}
    assert len(inspect.signature(host_register.host_register).parameters) == 2
    assert len(inspect.signature(host_register.host_unregister).parameters) == 1
    from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier

    tensors = layers()
    calls = CudaCalls(
        module.CUDA_CALLS.copy_batch, lambda address, size_bytes: bool(pinned.setdefault(address, size_bytes)), pinned.__delitem__
    )
    device = CudaCopyDevice(torch.device("cpu"), calls)
    copier = DeviceCopier(pages_of(tensors), SLOTS, device, True, piece_bytes=4096, ahead=False)
    copier.submit(store(1, [3], [0]))
    copier.wait({1})
    copier.submit(load(2, [4], [0]))
    assert [(result.number, result.ok, result.seconds) for result in copier.get_finished()] == [(1, True, 0.002)]
    copier.allow(1)
    copier.launch()
    assert [(result.number, result.ok) for result in copier.get_finished()] == [(2, True)]
    assert (tensors[1][4] == tensors[1][3]).all()
    assert len(compute.waited) == 1, "the steps wait for the store that they overwrite, and for nothing else"
    copier.shutdown()
    assert not pinned
