"""Copies that a device makes: right in whatever order it runs its streams, no thread waits for them, and memory grows with its use."""

from __future__ import annotations

import importlib
import logging
import mmap
import random
import warnings
from typing import Any

import numpy as np
import pytest

from tests.engine.lagging_device import LaggingDevice, Pinned
from tests.engine.test_host_copies import specs

pytestmark = pytest.mark.engine

BLOCKS, PAGE, SLOTS = 12, 64, 40


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("vllm.config", "harvester.engine.checkpoints.connector"):
            importlib.import_module(module)


def caches_of(tensors: list[Any]) -> Any:
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

    refs = [CanonicalKVCacheRef(index, tensor.shape[1]) for index, tensor in enumerate(tensors)]
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors], [refs])


def copier_of(device: LaggingDevice, tensors: list[Any], *, verify: bool = False, slots: int = SLOTS, piece_bytes: int = 4096) -> Any:
    from harvester.engine.checkpoints.devicecopier import DeviceCopier

    return DeviceCopier(caches_of(tensors), slots, device, verify, piece_bytes=piece_bytes, ahead=False)


def layers() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator) for page in (PAGE, PAGE + 24)]


class Engine:
    """Steps that write to some blocks, read others, and lose and get back their KV, two of them in flight; the scheduler's side of it."""

    def __init__(self, seed: int, verify: bool) -> None:
        self.rng = random.Random(seed)
        self.device = LaggingDevice(random.Random(seed + 1))
        self.tensors = layers()
        self.kv = [tensor.numpy().view(np.uint8) for tensor in self.tensors]
        self.copier = copier_of(self.device, self.tensors, verify=verify)
        self.holds = {block: self.bytes_of(block) for block in range(BLOCKS)}  # when all that was launched has run
        self.stores: dict[int, tuple[list[int], list[int], list[bytes]]] = {}
        self.loads: dict[int, tuple[list[int], list[int]]] = {}
        self.slots: dict[int, bytes] = {}  # written
        self.free = list(range(SLOTS - 1, -1, -1))
        self.jobs = self.ended = 0

    def bytes_of(self, block: int) -> bytes:
        return b"".join(kv[block].tobytes() for kv in self.kv)

    def some(self, of: list[int], most: int) -> list[int]:
        return self.rng.sample(of, min(len(of), self.rng.randrange(most + 1)))

    def store(self, blocks: list[int]) -> set[int]:
        slots = [self.free.pop() for _ in blocks]
        self.jobs += 1
        self.stores[self.jobs] = (blocks, slots, [self.holds[block] for block in blocks])
        self.copier.submit_store(self.jobs, *specs(blocks, slots))
        return {self.jobs}

    def load(self, slots: list[int], blocks: list[int]) -> None:
        self.jobs += 1
        self.loads[self.jobs] = blocks, slots
        for slot, block in zip(slots, blocks, strict=True):
            self.holds[block] = self.slots[slot]
        cache, host = specs(blocks, slots)
        self.copier.submit_load(self.jobs, host, cache)

    def step(self) -> None:
        given = [block for blocks, _ in self.loads.values() for block in blocks]  # allocated to requests that are read back
        mine = [block for block in range(BLOCKS) if block not in given]
        lost = self.some(mine, 4)  # reallocated in this step
        flush = {number for number, (blocks, _, _) in self.stores.items() if set(blocks) & set(lost)}
        if lost and len(self.free) > 2 * len(lost):
            flush |= self.store(lost)
        if flush:
            self.copier.wait(flush)
        self.copier.allow(self.rng.choice([None, 0, 1, 3, 8]))
        back = self.some(lost, 2)
        slots = self.some(sorted(self.slots), len(back))
        if slots:
            self.load(slots, back[: len(slots)])
            lost = [block for block in lost if block not in back[: len(slots)]]
        kept = [block for block in mine if block not in lost and block not in back]
        if len(self.free) > 8:
            self.store(self.some(kept, 3))
        self.forward(lost, kept)
        self.copier.launch()
        self.device.advance(self.rng.randrange(40))
        self.settle()

    def forward(self, writes: list[int], reads: list[int]) -> None:
        expected = {block: self.holds[block] for block in reads}
        new = {block: self.rng.randbytes(2 * PAGE + 24) for block in writes}
        self.holds |= new

        def run() -> None:
            for block, data in expected.items():
                assert self.bytes_of(block) == data, f"the step reads something else in block {block}"
            for block, data in new.items():
                self.kv[0][block] = np.frombuffer(data[:PAGE], np.uint8)
                self.kv[1][block] = np.frombuffer(data[PAGE:], np.uint8)

        self.device.launch(run)

    def settle(self) -> None:
        for result in self.copier.get_finished():
            assert result.success
            self.ended += 1
            if result.job_id in self.loads:
                del self.loads[result.job_id]
                continue
            _, slots, data = self.stores.pop(result.job_id)
            for slot, written in zip(slots, data, strict=True):
                assert bytes(self.copier.memory.row(slot)) == written, "another block was stored, or half of one"
                self.slots[slot] = written
        reading = {slot for _, slots in self.loads.values() for slot in slots}
        for slot in sorted(self.slots.keys() - reading)[SLOTS // 2 :]:
            del self.slots[slot]
            self.free.append(slot)


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_order_a_device_runs_its_streams_in_every_block_is_what_it_was(seed: int, verify: bool) -> None:
    engine = Engine(seed, verify)
    for _ in range(150):
        engine.step()
    for _ in range(100):
        engine.copier.allow(None)
        engine.copier.launch()
        engine.device.drain()
        engine.settle()
    assert not engine.copier.transfers.jobs
    assert engine.ended == engine.jobs > 150
    assert verify or not engine.device.host_waits
    engine.copier.shutdown()
    assert not engine.device.pinned.ranges


def test_a_step_waits_for_what_it_overwrites_on_the_device_and_no_thread_does() -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors)
    before = bytes(tensors[0][3].numpy())
    device.launch(lambda: None)  # the step before, which has not begun
    copier.submit_store(1, *specs([3], [0]))
    copier.wait({1})
    device.launch(lambda: tensors[0][3].zero_())
    assert device.host_waits == 0
    assert copier.get_finished() == []
    device.drain()
    assert [(result.job_id, result.success) for result in copier.get_finished()] == [(1, True)]
    assert bytes(copier.memory.row(0))[:PAGE] == before
    assert not tensors[0][3].any()
    copier.shutdown()


def test_no_more_blocks_are_copied_beside_a_step_than_it_allows_and_first_those_that_are_read_back() -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors)
    copier.submit_store(1, *specs([1, 2], [0, 1]))
    copier.launch()
    device.drain()
    copier.get_finished()
    copier.submit_store(2, *specs([3, 4, 5], [2, 3, 4]))
    cache, host = specs([6, 7], [0, 1])
    copier.submit_load(3, host, cache)
    ended = []
    for _ in range(3):
        copier.allow(2)
        copier.launch()
        device.drain()
        ended.append([result.job_id for result in copier.get_finished()])
    assert ended == [[3], [], [2]]
    assert (tensors[0][6] == tensors[0][1]).all()
    copier.shutdown()


def test_a_block_that_changed_in_host_memory_is_not_read_back_with_verify() -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True)
    copier.submit_store(1, *specs([1, 2], [0, 1]))
    copier.launch()
    device.drain()
    assert [result.success for result in copier.get_finished()] == [True]
    copier.memory.row(1)[5] ^= 1
    kept = tensors[0][8].clone()
    cache, host = specs([7, 8], [0, 1])
    copier.submit_load(2, host, cache)
    copier.launch()
    device.drain()
    assert [(result.job_id, result.success) for result in copier.get_finished()] == [(2, False)]
    assert (tensors[0][7] == tensors[0][1]).all()
    assert (tensors[0][8] == kept).all()
    copier.shutdown()


@pytest.mark.parametrize("out", [True, False], ids=["on the way out", "on the way back"])
def test_a_bit_that_changes_on_the_way_is_found_with_verify(out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True)
    if not out:
        copier.submit_store(1, *specs([1], [0]))
        copier.launch()
        device.drain()
        copier.get_finished()
    copy = device._copy

    def spoilt(source: int, target: int, size_bytes: int, to_device: bool) -> Any:
        import ctypes

        run = copy(source, target, size_bytes, to_device)
        page = copier._groups[0].base[0] + 1 * copier._groups[0].stride[0]
        hit = target == copier.memory.address(0) if out else to_device and size_bytes == PAGE
        assert page

        def wrong() -> None:
            run()
            if hit:
                (ctypes.c_ubyte * 1).from_address(target)[0] ^= 1

        return wrong

    monkeypatch.setattr(device, "_copy", spoilt)
    cache, host = specs([1], [0])
    (copier.submit_store(2, cache, host) if out else copier.submit_load(2, host, cache))
    copier.launch()
    device.drain()
    assert [(result.job_id, result.success) for result in copier.get_finished()] == [(2, False)]
    copier.shutdown()


def test_a_job_of_more_blocks_than_scratch_memory_holds_is_checked_in_parts() -> None:
    from harvester.engine.checkpoints.checks import SCRATCH_SLOTS

    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True, slots=3 * SCRATCH_SLOTS)
    count = 2 * SCRATCH_SLOTS + 3
    copier.submit_store(1, *specs([number % BLOCKS for number in range(count)], list(range(count))))
    copier.wait({1})  # the only wait of a thread there is: for scratch memory
    device.drain()
    assert [(result.job_id, result.success) for result in copier.get_finished()] == [(1, True)]
    assert bytes(copier.memory.row(count - 1))[:PAGE] == bytes(tensors[0][(count - 1) % BLOCKS].numpy())
    copier.shutdown()


def test_on_a_host_of_2_tb_a_budget_of_500_gb_pins_one_piece_at_start_and_more_as_it_is_used() -> None:
    import torch

    from harvester.engine.checkpoints.devicecopier import DeviceCopier
    from harvester.engine.checkpoints.pieces import PIECE_BYTES

    page = 1 << 20
    device, tensors = LaggingDevice(random.Random(0)), [torch.ones((4, page), dtype=torch.int8) for _ in range(2)]
    copier = DeviceCopier(caches_of(tensors), (500 << 30) // (2 * page), device, False)
    try:
        while not copier.memory.ready(0):
            pass
        assert sum(device.pinned.ranges.values()) == copier.memory.taken_bytes == PIECE_BYTES
        last = PIECE_BYTES // (2 * page) + 1  # in the second piece
        copier.submit_store(1, *specs([1, 2], [0, last]))
        while not copier.memory.ready(last):
            pass
        copier.launch()
        device.drain()
        assert [result.success for result in copier.get_finished()] == [True]
        assert sum(device.pinned.ranges.values()) == copier.memory.taken_bytes == 2 * PIECE_BYTES
    finally:
        copier.shutdown()


def test_under_a_limit_of_64_kib_on_locked_memory_copies_go_to_other_pages_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harvester.engine.checkpoints import pieces

    monkeypatch.setattr(pieces, "memlock_bytes", lambda: 64 << 10)
    tensors, device = layers(), LaggingDevice(random.Random(0), Pinned(64 << 10))
    slots = (64 << 10) // (2 * PAGE + 24) * 2
    copier = copier_of(device, tensors, slots=slots, piece_bytes=16 << 10)
    with caplog.at_level(logging.WARNING):
        copier.submit_store(1, *specs([1, 2, 3], [0, slots - 2, slots - 1]))
        copier.launch()
    device.drain()
    assert [result.success for result in copier.get_finished()] == [True]
    assert bytes(copier.memory.row(slots - 1))[:PAGE] == bytes(tensors[0][3].numpy())
    assert copier.memory.pinned_bytes == 64 << 10 < copier.memory.taken_bytes
    assert device.pinned.asked == 5, "not asked again once it was refused"
    (line,) = caplog.messages
    assert "ulimit -l: 64 KiB" in line
    copier.shutdown()
    assert not device.pinned.ranges


def test_where_the_machine_has_no_more_memory_a_job_fails_and_others_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors)
    assert copier.memory.prepare()

    def refused(*given: Any, **named: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with caplog.at_level(logging.WARNING):
        for number, slot in enumerate([0, SLOTS - 1, SLOTS - 2]):
            copier.submit_store(number, *specs([1, 2], [slot, 1]))
        copier.launch()
        device.drain()
    assert {result.job_id: result.success for result in copier.get_finished()} == {0: True, 1: False, 2: False}
    assert len(caplog.messages) == 1
    copier.shutdown()


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

    from harvester.engine.checkpoints.copies import Copies

    spec = spec_of(monkeypatch, rank=1, ranks=2, replicated=True)
    assert Copies(spec, SimpleNamespace(), SimpleNamespace())._is_store_writer
    assert spec.kv_bytes_per_chunk >= 2 * (2 * PAGE + 24), "the account of host memory is of both copies"
