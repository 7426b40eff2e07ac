"""Copies KV blocks to host memory and back: how long that takes, and whether their contents come back unchanged."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

BLOCKS = 32  # copied at once
ROUNDS = 5


def measure_kv_copy(caches: Sequence[torch.Tensor], blocks: int) -> dict[str, float]:
    """Median seconds of one block, over all layers, to host memory (``store_s``) and back (``load_s``), and its size (``block_bytes``).

    ``caches``: one tensor per layer, with an axis of ``blocks`` or a multiple of it. They are read and never written, since checkpoints may
    be on their way back into them: the copies to the device go to other memory, as large as ``BLOCKS`` blocks.
    """
    views = [_by_block(cache, blocks) for cache in caches]
    count = min(BLOCKS, blocks - 1)
    device = [view[1 : 1 + count] for view in views]  # block 0 is vLLM's null block
    pinned = torch.cuda.is_available() and views[0].is_cuda
    host = [_empty(part, pinned) for part in device]
    store_s = [_timed(device, host, pinned) for _ in range(ROUNDS)]
    target = [torch.empty_like(part) for part in device]
    load_s = [_timed(host, target, pinned) for _ in range(ROUNDS)]
    size = sum(part[0].numel() * part.element_size() for part in device)
    return {"store_s": sorted(store_s)[ROUNDS // 2] / count, "load_s": sorted(load_s)[ROUNDS // 2] / count, "block_bytes": float(size)}


def _empty(like: torch.Tensor, pinned: bool) -> torch.Tensor:
    """Host memory, unpinned where the machine refuses to pin it: checkpoints would have the same slower copies there."""
    try:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=pinned)
    except RuntimeError:
        if not pinned:
            raise
        return torch.empty(like.shape, dtype=like.dtype)


def kv_comes_back(caches: Sequence[torch.Tensor], blocks: int) -> bool:
    """Whether random bytes, written into KV blocks of every layer, come back from host memory as they were.

    Between the two copies the blocks are cleared. At the end they hold what they held before. Nothing else may use them meanwhile.
    """
    count = min(BLOCKS, blocks - 1)
    same = True
    for cache in caches:
        device = _by_block(cache, blocks)[blocks - count :]
        before = device.clone()
        wanted = torch.randint(0, 256, (before.numel() * before.element_size(),), dtype=torch.uint8, device=before.device)
        device.copy_(wanted.view(before.dtype).view(before.shape))
        host = _empty(before, before.is_cuda)
        _timed([device], [host], before.is_cuda)
        device.zero_()
        _timed([host], [device], before.is_cuda)
        found = device.contiguous().flatten().view(torch.uint8)
        same &= bool(torch.equal(found, wanted)) and bool(torch.equal(host.flatten().view(torch.uint8), wanted.cpu()))
        device.copy_(before)
    return same


def _by_block(cache: torch.Tensor, blocks: int) -> torch.Tensor:
    """The cache with KV blocks along the first axis. Where a kernel splits each into several blocks, those are along the second axis."""
    axis = next((i for i, size in enumerate(cache.shape) if size == blocks), None)
    if axis is not None:
        return cache.movedim(axis, 0)
    axis = next(i for i, size in enumerate(cache.shape) if size % blocks == 0)
    moved = cache.movedim(axis, 0)
    return moved.view(blocks, -1, *moved.shape[1:])


def _timed(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], wait: bool) -> float:
    began_s = time.perf_counter()
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=wait)
    if wait:
        torch.cuda.synchronize()
    return time.perf_counter() - began_s
