"""Input of the planner: the engine's host memory, once, and KV blocks, with each step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLayout:
    """Host memory of one engine: ``slots`` of ``slot_bytes`` on all ``num_workers`` ranks together, each for a KV block.

    ``supports_checkpoints``: whether the model's KV is of one kind, full attention; for others there are no checkpoints.
    """

    slots: int
    slot_bytes: int
    num_workers: int
    block_tokens: int
    hash_tokens: int  # tokens covered by one block hash; a divisor of `block_tokens`
    partial_blocks: bool = True
    supports_checkpoints: bool = True
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """KV blocks in a planned step. ``given``: request, its new blocks, and whether these replace all that it had."""

    given: Iterable[tuple[str, Sequence[int] | None, bool]]
    copied_to: Sequence[int]
    preempted: Collection[str]
    finished: Collection[str]
    tokens: int
