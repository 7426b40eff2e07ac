"""KV caches of two layers, and the copier of a device over them."""

from __future__ import annotations

from typing import Any

from tests.fakes.lagging_device import LaggingDevice

BLOCKS, PAGE, SLOTS = 12, 64, 40


def pages_of(tensors: list[Any]) -> Any:
    from harvester.engine.checkpoints.worker.layout import in_a_row

    return in_a_row(tensors)


def copier_of(device: LaggingDevice, tensors: list[Any], *, verify: bool = False, slots: int = SLOTS, piece_bytes: int = 4096) -> Any:
    from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier

    return DeviceCopier(pages_of(tensors), slots, device, verify, piece_bytes=piece_bytes, ahead=False)


def store(number: int, blocks: list[int], slots: list[int]) -> Any:
    """A job of the workers' that copies KV blocks to host slots."""
    from harvester.engine.checkpoints.worker.transfers import Job

    return Job(number, True, list(zip(blocks, slots, strict=True)))


def load(number: int, blocks: list[int], slots: list[int]) -> Any:
    """One that copies host slots to KV blocks."""
    from harvester.engine.checkpoints.worker.transfers import Job

    return Job(number, False, list(zip(blocks, slots, strict=True)))


def layers() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator) for page in (PAGE, PAGE + 24)]
