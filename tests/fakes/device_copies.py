"""KV caches of two layers, and the copier of a device over them."""

from __future__ import annotations

from typing import Any

from tests.fakes.lagging_device import LaggingDevice

BLOCKS, PAGE, SLOTS = 12, 64, 40


def caches_of(tensors: list[Any]) -> Any:
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

    refs = [CanonicalKVCacheRef(index, tensor.shape[1]) for index, tensor in enumerate(tensors)]
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors], [refs])


def copier_of(device: LaggingDevice, tensors: list[Any], *, verify: bool = False, slots: int = SLOTS, piece_bytes: int = 4096) -> Any:
    from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier

    return DeviceCopier(caches_of(tensors), slots, device, verify, piece_bytes=piece_bytes, ahead=False)


def layers() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator) for page in (PAGE, PAGE + 24)]
