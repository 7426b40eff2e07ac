"""Copies that a device makes are right in whatever order it runs its streams, and no thread waits for them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.fakes.device_copies import BLOCKS, PAGE, SLOTS, copier_of, layers, load, store
from tests.fakes.lagging_device import LaggingDevice

pytestmark = pytest.mark.engine


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
        self.copier.submit(store(self.jobs, blocks, slots))
        return {self.jobs}

    def load(self, slots: list[int], blocks: list[int]) -> None:
        self.jobs += 1
        self.loads[self.jobs] = blocks, slots
        for slot, block in zip(slots, blocks, strict=True):
            self.holds[block] = self.slots[slot]
        self.copier.submit(load(self.jobs, blocks, slots))

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
            assert result.ok
            self.ended += 1
            if result.number in self.loads:
                del self.loads[result.number]
                continue
            _, slots, data = self.stores.pop(result.number)
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
    copier.submit(store(1, [3], [0]))
    copier.wait({1})
    device.launch(lambda: tensors[0][3].zero_())
    assert device.host_waits == 0
    assert copier.get_finished() == []
    device.drain()
    assert [(result.number, result.ok) for result in copier.get_finished()] == [(1, True)]
    assert bytes(copier.memory.row(0))[:PAGE] == before
    assert not tensors[0][3].any()
    copier.shutdown()


def test_no_more_blocks_are_copied_beside_a_step_than_it_allows_and_first_those_that_are_read_back() -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors)
    copier.submit(store(1, [1, 2], [0, 1]))
    copier.launch()
    device.drain()
    copier.get_finished()
    copier.submit(store(2, [3, 4, 5], [2, 3, 4]))
    copier.submit(load(3, [6, 7], [0, 1]))
    ended = []
    for _ in range(3):
        copier.allow(2)
        copier.launch()
        device.drain()
        ended.append([result.number for result in copier.get_finished()])
    assert ended == [[3], [], [2]]
    assert (tensors[0][6] == tensors[0][1]).all()
    copier.shutdown()


def test_a_block_that_changed_in_host_memory_is_not_read_back_with_verify() -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True)
    copier.submit(store(1, [1, 2], [0, 1]))
    copier.launch()
    device.drain()
    assert [result.ok for result in copier.get_finished()] == [True]
    copier.memory.row(1)[5] ^= 1
    kept = tensors[0][8].clone()
    copier.submit(load(2, [7, 8], [0, 1]))
    copier.launch()
    device.drain()
    assert [(result.number, result.ok) for result in copier.get_finished()] == [(2, False)]
    assert (tensors[0][7] == tensors[0][1]).all()
    assert (tensors[0][8] == kept).all()
    copier.shutdown()


@pytest.mark.parametrize("out", [True, False], ids=["on the way out", "on the way back"])
def test_a_bit_that_changes_on_the_way_is_found_with_verify(out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True)
    if not out:
        copier.submit(store(1, [1], [0]))
        copier.launch()
        device.drain()
        copier.get_finished()
    copy = device._copy

    def spoilt(source: int, target: int, size_bytes: int, to_device: bool) -> Any:
        import ctypes

        run = copy(source, target, size_bytes, to_device)
        page = copier._layers.base[0] + 1 * copier._layers.stride[0]
        hit = target == copier.memory.address(0) if out else to_device and size_bytes == PAGE
        assert page

        def wrong() -> None:
            run()
            if hit:
                (ctypes.c_ubyte * 1).from_address(target)[0] ^= 1

        return wrong

    monkeypatch.setattr(device, "_copy", spoilt)
    copier.submit((store if out else load)(2, [1], [0]))
    copier.launch()
    device.drain()
    assert [(result.number, result.ok) for result in copier.get_finished()] == [(2, False)]
    copier.shutdown()


def test_a_job_of_more_blocks_than_scratch_memory_holds_is_checked_in_parts() -> None:
    from harvester.engine.checkpoints.worker.checks import SCRATCH_SLOTS

    tensors, device = layers(), LaggingDevice(random.Random(0))
    copier = copier_of(device, tensors, verify=True, slots=3 * SCRATCH_SLOTS)
    count = 2 * SCRATCH_SLOTS + 3
    copier.submit(store(1, [number % BLOCKS for number in range(count)], list(range(count))))
    copier.wait({1})  # the only wait of a thread there is: for scratch memory
    device.drain()
    assert [(result.number, result.ok) for result in copier.get_finished()] == [(1, True)]
    assert bytes(copier.memory.row(count - 1))[:PAGE] == bytes(tensors[0][(count - 1) % BLOCKS].numpy())
    copier.shutdown()


def test_what_a_step_waits_for_stands_behind_no_copy_that_nobody_waits_for() -> None:
    device = LaggingDevice(random.Random(1))
    copier = copier_of(device, layers())
    copier.allow(None)
    copier.submit(store(1, list(range(8)), list(range(8))))
    copier.launch()
    copier.submit(store(2, [9], [9]))
    copier.wait({2})
    device.launch(lambda: None)
    device.finish_steps(still=["out"])
    assert {job.number for job in copier.get_finished()} == {2}
    device.drain()
    assert {job.number for job in copier.get_finished()} == {1}
