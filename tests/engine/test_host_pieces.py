"""Host memory that a device copies to is pinned as it is used, and where it ends it ends in one line."""

from __future__ import annotations

import logging
import mmap
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.device_copies import PAGE, SLOTS, copier_of, layers, pages_of, store
from tests.fakes.lagging_device import LaggingDevice, Pinned

pytestmark = pytest.mark.engine


def test_on_a_host_of_2_tb_a_budget_of_500_gb_pins_one_piece_at_start_and_more_as_it_is_used() -> None:
    import torch

    from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier
    from harvester.engine.checkpoints.worker.pieces import PIECE_BYTES

    page = 1 << 20
    device, tensors = LaggingDevice(random.Random(0)), [torch.ones((4, page), dtype=torch.int8) for _ in range(2)]
    copier = DeviceCopier(pages_of(tensors), (500 << 30) // (2 * page), device, False)
    try:
        while not copier.memory.ready(0):
            pass
        assert sum(device.pinned.ranges.values()) == copier.memory.taken_bytes == PIECE_BYTES
        last = PIECE_BYTES // (2 * page) + 1  # in the second piece
        copier.submit(store(1, [1, 2], [0, last]))
        while not copier.memory.ready(last):
            pass
        copier.launch()
        device.drain()
        assert [result.ok for result in copier.get_finished()] == [True]
        assert sum(device.pinned.ranges.values()) == copier.memory.taken_bytes == 2 * PIECE_BYTES
    finally:
        copier.shutdown()


def test_under_a_limit_of_64_kib_on_locked_memory_copies_go_to_other_pages_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harvester.engine.checkpoints.worker import pieces

    monkeypatch.setattr(pieces, "memlock_bytes", lambda: 64 << 10)
    tensors, device = layers(), LaggingDevice(random.Random(0), Pinned(64 << 10))
    slots = (64 << 10) // (2 * PAGE + 24) * 2
    copier = copier_of(device, tensors, slots=slots, piece_bytes=16 << 10)
    with caplog.at_level(logging.WARNING):
        copier.submit(store(1, [1, 2, 3], [0, slots - 2, slots - 1]))
        copier.launch()
    device.drain()
    assert [result.ok for result in copier.get_finished()] == [True]
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
            copier.submit(store(number, [1, 2], [slot, 1]))
        copier.launch()
        device.drain()
    assert {result.number: result.ok for result in copier.get_finished()} == {0: True, 1: False, 2: False}
    assert len(caplog.messages) == 1
    copier.shutdown()


@given(
    block_bytes=st.integers(1, 9000),
    piece_bytes=st.sampled_from([4096, 16384]),
    max_bytes=st.one_of(st.none(), st.integers(0, 1 << 18)),
    uses=st.lists(st.tuples(st.integers(0, 29), st.sampled_from(["use", "prepare", "row"])), max_size=40),
)
def test_memory_that_grows_keeps_what_was_written_and_takes_no_more_than_a_piece_ahead(
    block_bytes: int, piece_bytes: int, max_bytes: int | None, uses: list[tuple[int, str]]
) -> None:
    from harvester.engine.checkpoints.worker.pieces import HostPieces

    device = LaggingDevice(random.Random(0), Pinned(max_bytes))
    memory = HostPieces(30, block_bytes, device.pin, device.unpin, piece_bytes)
    each, highest, written = max(1, piece_bytes // block_bytes), 0, {}
    for count, (slot, kind) in enumerate(uses):
        if kind == "prepare":
            memory.prepare()
            continue
        highest = max(highest, slot)
        memory.use(slot)
        if kind == "row":
            row = memory.row(slot)
            assert row is not None
            assert row.ctypes.data == memory.address(slot)
            row[:] = written[slot] = count
    while memory.prepare():
        pass
    assert memory.ready(highest)
    assert not memory.ready(highest + 2 * each)
    for slot, value in written.items():
        row = memory.row(slot)
        assert row is not None
        assert len(row) == block_bytes
        assert (row == value).all(), f"slot {slot} was written over"
    assert sum(device.pinned.ranges.values()) == memory.pinned_bytes <= memory.taken_bytes
    memory.close()
    assert not device.pinned.ranges
