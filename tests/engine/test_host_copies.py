"""Copies of KV blocks to host memory and back, the core they are made on, and host memory that is taken ahead of its use."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pytest

from tests.fakes.device_copies import load, pages_of, store

pytestmark = pytest.mark.engine

BLOCKS, PAGE = 6, 2048


def test_taking_memory_ahead_leaves_what_was_written_as_it_is() -> None:
    from harvester.engine.checkpoints.worker.hostmemory import AHEAD, PIECE_BYTES, HostMemory

    memory = HostMemory(3 * AHEAD, PIECE_BYTES // 2)
    memory.rows[:] = 7
    taken = 0
    while memory.prepare():
        taken += 1
    assert 1 <= taken <= AHEAD // 2, "no more than what is ahead of the first slot"
    memory.use(3 * AHEAD - 1)
    while memory.prepare():
        taken += 1
    assert taken <= 3 * AHEAD // 2
    assert (memory.rows == 7).all()


def copier_of(tensors: list[Any], verify: bool = False) -> Any:
    from harvester.engine.checkpoints.worker.copier import HostCopier

    return HostCopier(pages_of(tensors), 8, verify)


@pytest.mark.parametrize("verify", [False, True])
def test_blocks_of_layers_of_any_size_come_back_as_they_were(verify: bool) -> None:
    import torch

    generator = torch.Generator().manual_seed(1)
    storage = torch.randint(-128, 128, (2, BLOCKS, PAGE), dtype=torch.int8, generator=generator)
    tensors = [storage[1], storage[0], torch.randint(-128, 128, (BLOCKS, PAGE + 64), dtype=torch.int8, generator=generator)]
    before = [tensor.clone() for tensor in tensors]
    copier = copier_of(tensors, verify)
    try:
        copier.submit(store(1, [4, 1], [5, 2]))
        copier.wait({1})
        expected = np.concatenate([tensor[4].numpy().view(np.uint8) for tensor in before])
        assert (copier.host[5][: len(expected)] == expected).all(), "layer after layer"
        for tensor in tensors:
            tensor.zero_()
        copier.submit(load(2, [0, 3], [5, 2]))
        copier.wait({2})
        assert [(result.number, result.ok) for result in copier.get_finished()] == [(1, True), (2, True)]
    finally:
        copier.shutdown()
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[0], old[4])
        assert torch.equal(tensor[3], old[1])
        assert not tensor[[1, 2, 4, 5]].any(), "no other block was touched"


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_thread_keeps_off_the_core_that_the_worker_is_bound_to() -> None:
    import torch

    own, given = os.sched_getaffinity(0), os.sched_getaffinity(os.getppid())
    os.sched_setaffinity(0, {min(own)})
    try:
        copier = copier_of([torch.zeros((BLOCKS, PAGE), dtype=torch.int8)])
        try:
            copier.submit(store(1, [0], [0]))
            while not copier.get_finished():  # the thread's first copy comes after its move
                time.sleep(0.01)
            assert os.sched_getaffinity(copier._thread.native_id) == given - {min(own)}
            assert os.sched_getaffinity(0) == {min(own)}
        finally:
            copier.shutdown()
    finally:
        os.sched_setaffinity(0, own)
