"""What a worker on CUDA is given for its copies, as far as it shows without a GPU."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.engine.test_host_copies import specs
from tests.fakes.device_copies import PAGE, SLOTS, caches_of, layers
from tests.fakes.lagging_device import LaggingDevice

pytestmark = pytest.mark.engine


def spec_of(monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, ranks: int = 1, replicated: bool = False, verify: bool = False) -> Any:
    """The spec of a worker on CUDA, with a lagging device for the GPU, in a container with 64 MB of ``/dev/shm``."""
    from vllm.platforms.interface import PlatformEnum
    from vllm.v1.kv_offload import config
    from vllm.v1.kv_offload.cpu import shared_offload_region, spec

    from harvester.engine.checkpoints import spec as module

    def short(size_bytes: int, **named: Any) -> None:
        assert size_bytes <= 64 << 20, "No space left in /dev/shm"

    platform = type(spec.current_platform)()
    platform._enum = PlatformEnum.CUDA
    for place in (spec, module):
        monkeypatch.setattr(place, "current_platform", platform)
    monkeypatch.setattr(shared_offload_region, "check_shm_free_space", short)
    monkeypatch.setattr(module, "CudaDevice", lambda device: LaggingDevice(random.Random(0)), raising=False)
    page = 2 * PAGE + 24
    return module.CheckpointSpec(
        config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("a", "b"), group_id=0),),
            worker_kv_bytes_per_block=page,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": 1 << 30, "verify": verify},
            engine_id="test",
            model=config.OffloadingModelConfig("m", "float32"),
            cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=config.OffloadingParallelConfig(rank, ranks, ranks, 1, 1, 1, 0, 1, 0, False),
            replicated_layout=replicated,
            canonical_layout=False,
            kv_cache_layout=None,
        )
    )


def test_a_container_with_64_mb_of_shared_memory_has_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(monkeypatch)
    copier = spec.get_worker(caches_of(layers()))
    try:
        assert spec.num_chunks * copier.block_bytes > 32 << 20
        copier.submit_store(1, *specs([1], [0]))
        copier.wait({1})
        copier._device.drain()
        assert [result.success for result in copier.get_finished()] == [True]
    finally:
        copier.shutdown()


def fails_on_spoilt_memory(copier: Any) -> None:
    copier.submit_store(1, *specs([1], [0]))
    copier.wait({1})
    copier._device.drain()
    assert [result.success for result in copier.get_finished()] == [True]
    copier.memory.row(0)[0] ^= 1
    cache, host = specs([2], [0])
    copier.submit_load(2, host, cache)
    copier.launch()
    copier._device.drain()
    assert [result.success for result in copier.get_finished()] == [False]


def test_verify_is_heeded_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    copier = spec_of(monkeypatch, verify=True).get_worker(caches_of(layers()))
    try:
        fails_on_spoilt_memory(copier)
    finally:
        copier.shutdown()


def test_of_kv_that_is_the_same_on_all_ranks_each_stores_its_own_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLA's latents: a rank reads only its own host memory, so that what rank 0 stores is of no use to the others."""
    from types import SimpleNamespace

    from harvester.engine.checkpoints.worker.copies import Copies

    spec = spec_of(monkeypatch, rank=1, ranks=2, replicated=True)
    assert Copies(spec, SimpleNamespace(), SimpleNamespace())._is_store_writer
    assert spec.kv_bytes_per_chunk >= 2 * (2 * PAGE + 24), "the account of host memory is of both copies"


class _Stream:
    """A CUDA stream that does what it is given at once; only what the real one has may be asked of it."""

    def __init__(self, device: Any = None) -> None:
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

    from harvester.engine.checkpoints.worker import device as module

    for ours, theirs in ((_Stream, torch.cuda.Stream), (_Event, torch.cuda.Event)):
        assert all(hasattr(theirs, name) for name in vars(ours) if not name.startswith("_"))
    signature, compute = inspect.signature(_custom_ops.swap_blocks_batch), _Stream()

    def swap(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named).arguments
        tables = [bound[name] for name in ("src_ptrs", "dst_ptrs", "sizes")]
        assert all(table.dtype == torch.int64 and table.is_contiguous() for table in tables)
        for source, target, size_bytes in zip(*(table.tolist() for table in tables), strict=True):
            ctypes.memmove(target, source, size_bytes)

    monkeypatch.setattr(_custom_ops, "swap_blocks_batch", swap)
    for name, ours in {"Stream": _Stream, "Event": _Event, "stream": nullcontext, "current_stream": lambda device: compute}.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, ours)
    pinned: dict[int, int] = {}
    for ours, theirs in (
        (lambda ptr, num_bytes: bool(pinned.setdefault(ptr, num_bytes)), "host_register"),
        (pinned.pop, "host_unregister"),
    ):
        assert len(inspect.signature(getattr(host_register, theirs)).parameters) == (2 if theirs == "host_register" else 1)
        monkeypatch.setattr(module, theirs, ours)
    from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier

    tensors = layers()
    copier = DeviceCopier(caches_of(tensors), SLOTS, module.CudaDevice(torch.device("cpu")), True, piece_bytes=4096, ahead=False)
    copier.submit_store(1, *specs([3], [0]))
    copier.wait({1})
    cache, host = specs([4], [0])
    copier.submit_load(2, host, cache)
    assert [(result.job_id, result.success, result.transfer_time) for result in copier.get_finished()] == [(1, True, 0.002)]
    copier.allow(1)
    copier.launch()
    assert [(result.job_id, result.success) for result in copier.get_finished()] == [(2, True)]
    assert (tensors[1][4] == tensors[1][3]).all()
    assert len(compute.waited) == 1, "the steps wait for the store that they overwrite, and for nothing else"
    copier.shutdown()
    assert not pinned
