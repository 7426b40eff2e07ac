"""Copies of KV blocks between caches whose layers lie in one piece, or anywhere, and host memory that is taken ahead of its use."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.engine

BLOCKS, PAGE = 6, 2048


def test_taking_memory_ahead_leaves_what_was_written_as_it_is() -> None:
    from harvester.engine.checkpoints.hostmemory import AHEAD, PIECE_BYTES, HostMemory

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


@pytest.mark.parametrize(
    ("layers", "pieces"),
    [([0, 1, 2, 3], 1), ([3, 2, 1, 0], 1), ([0, 2], 1), ([0], 1), ([0, 1, 3], 2), ([0, 1, None, 2, 3], 3), ([None, None], 2)],
    ids=["in one piece", "backwards", "apart", "one layer", "unequal distances", "one elsewhere", "all elsewhere"],
)
@pytest.mark.parametrize("verify", [False, True])
def test_blocks_come_back_as_they_were_wherever_their_layers_lie(layers: list[int | None], pieces: int, verify: bool) -> None:
    """``layers``: the place of each in one storage, or None for a storage of its own of another shape."""
    import torch
    from vllm.v1.kv_offload.base import (
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        GPULoadStoreSpec,
    )
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

    from harvester.engine.checkpoints.copier import HostCopier

    generator = torch.Generator().manual_seed(len(layers))

    def noise(*shape: int) -> torch.Tensor:
        return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)

    storage = noise(4, BLOCKS, PAGE)
    tensors = [storage[place] if place is not None else noise(BLOCKS, PAGE + 64 * (index + 1)) for index, place in enumerate(layers)]
    refs = [CanonicalKVCacheRef(index, tensor.shape[1]) for index, tensor in enumerate(tensors)]
    copier = HostCopier(CanonicalKVCaches([CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors], [refs]), 8, verify)
    try:
        assert len(copier._groups[0]) == pieces
        before = [tensor.clone() for tensor in tensors]
        copier.submit_store(1, GPULoadStoreSpec([4, 1], group_sizes=[2], block_indices=[0]), CPULoadStoreSpec([5, 2]))
        copier.wait({1})
        expected = np.concatenate([tensor[4].numpy().view(np.uint8) for tensor in before])
        assert (copier.host[5][: len(expected)] == expected).all(), "layer after layer"
        for tensor in tensors:
            tensor.zero_()
        copier.submit_load(2, CPULoadStoreSpec([5, 2]), GPULoadStoreSpec([0, 3], group_sizes=[2], block_indices=[0]))
        copier.wait({2})
        assert [(result.job_id, result.success) for result in copier.get_finished()] == [(1, True), (2, True)]
    finally:
        copier.shutdown()
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[0], old[4])
        assert torch.equal(tensor[3], old[1])
        assert not tensor[[1, 2, 4, 5]].any(), "no other block was touched"
