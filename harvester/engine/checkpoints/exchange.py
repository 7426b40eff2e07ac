"""What the scheduler and the planner tell each other: what to copy beside the next step, and what came of the copies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class PartialBlock:
    """The partly filled block of a preempted request: its ``tokens`` are the first so many of the request."""

    tokens: int
    key: bytes


@dataclass(slots=True)
class CopyStats:
    """What the copies came to since they were last asked for."""

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
    """What the policy wants of the next step. ``grants``: blocks by request; ``wait_blocks``: most that the step may wait for.

    ``allowed``: most copied beside it; ``awaited``: the same where an online request is read back. None: no bound.
    """

    grants: Mapping[str, int] = field(default_factory=dict)
    allowed: int | None = None
    awaited: int | None = None
    wait_blocks: int = 8


def partial_key(request_id: str, tokens: int) -> bytes:
    """Of a partly filled block. No other request finds it: its tokens are not hashed with what else decides their KV (adapters, images)."""
    return b"partial" + hashlib.sha256(f"{request_id} {tokens}".encode()).digest()
