"""How a KV block lies in a host slot: the pages of its layers, one after another, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches


@dataclass(frozen=True, slots=True)
class Pages:
    """Of one layer in one KV cache group. ``tensor``: [num_blocks, page_bytes] int8; ``place``: where a page lies in a slot."""

    tensor: torch.Tensor
    place: slice


def layouts(caches: CanonicalKVCaches) -> list[list[Pages]]:
    """The layers of each KV cache group."""
    return [_layers(caches, group) for group in range(len(caches.group_data_refs))]


def slot_bytes(groups: list[list[Pages]]) -> int:
    """That hold a block of any group."""
    return max((group[-1].place.stop for group in groups if group), default=0)


def _layers(caches: CanonicalKVCaches, group: int) -> list[Pages]:
    found, begin = [], 0
    for ref in caches.group_data_refs[group]:
        tensor = caches.tensors[ref.tensor_idx].tensor.view(torch.int8)[:, : ref.page_size_bytes]
        found.append(Pages(tensor, slice(begin, begin + ref.page_size_bytes)))
        begin += ref.page_size_bytes
    return found
