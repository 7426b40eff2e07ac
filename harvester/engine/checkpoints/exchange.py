"""What the scheduler and the planner tell each other: what to copy beside the next step, and what came of the copies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class PartialBlock:
    """The partly filled last block of a preempted request. ``tokens``: of the request, up to the end of what the block holds."""

    tokens: int
    key: bytes


@dataclass(slots=True)
class CopyStats:
    """Totals of the copies since they were last read."""

    stored_blocks: int = 0
    loaded_blocks: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_s: float = 0.0
    load_s: float = 0.0
    failed: int = 0  # jobs
    waited_blocks: int = 0  # copied while a step waited

    def add(self, other: CopyStats) -> None:
        for place in fields(self):
            setattr(self, place.name, getattr(self, place.name) + getattr(other, place.name))


@dataclass(slots=True)
class CopyRequest:
    """Copies that the policy wants beside a step. ``grants``: blocks to store by request; ``wait_blocks``: most that the step waits for.

    ``allowed``: most blocks copied beside the step; ``awaited``: the same if an online request is read back in it. None: no bound.
    """

    grants: Mapping[str, int] = field(default_factory=dict)
    allowed: int | None = None
    awaited: int | None = None
    wait_blocks: int = 8


def partial_key(request_id: str, tokens: int) -> bytes:
    """Key of a partly filled block, for its own request only: it does not cover what else decides the KV (adapters, images)."""
    return b"partial" + hashlib.sha256(f"{request_id} {tokens}".encode()).digest()
