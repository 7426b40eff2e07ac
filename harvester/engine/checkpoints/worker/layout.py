"""How a KV block lies in a host slot: the pages of its layers, one after another, without padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of one layer. ``tensor``: [num_blocks, page_bytes] int8, strided as the KV cache is; ``place``: of a page in a slot."""

    tensor: torch.Tensor
    place: slice


def in_a_row(tensors: Iterable[torch.Tensor]) -> list[Pages]:
    """Give each layer its place in a slot, one after another. ``tensors``: of each layer, [num_blocks, page_bytes] int8."""
    found, begin = [], 0
    for tensor in tensors:
        end = begin + tensor.shape[1]
        found.append(Pages(tensor, slice(begin, end)))
        begin = end
    return found


def slot_bytes(pages: list[Pages]) -> int:
    """Bytes of a slot, which holds one KV block."""
    return pages[-1].place.stop if pages else 0
