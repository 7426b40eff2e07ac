"""Copies of KV blocks: the engine core's orders to the workers, and the workers' reports."""

from __future__ import annotations

from dataclasses import dataclass, field

Block = tuple[int, int]  # KV block, host slot


@dataclass(slots=True)
class CopyJob:
    """All blocks of one request that are copied in one direction. Jobs have numbers; each rank reports each number once."""

    request_id: str
    blocks: list[Block]


@dataclass
class StepOrders:
    """Copies beside one step. ``flush``: jobs that must end before its forward pass; ``allowed``: most blocks beside it; None: no bound."""

    loads: dict[int, CopyJob] = field(default_factory=dict)
    stores: dict[int, CopyJob] = field(default_factory=dict)
    flush: set[int] = field(default_factory=set)
    allowed: int | None = None


@dataclass(slots=True)
class Volume:
    """Totals of the copies in one direction, all ranks together."""

    size_bytes: int = 0
    seconds: float = 0.0

    def add(self, size_bytes: int, seconds: float) -> None:
        self.size_bytes += size_bytes
        self.seconds += seconds


@dataclass
class CopyReport:
    """Jobs that ended since the last report. ``ended``: on how many ranks, by job; a job has failed if it failed on any rank."""

    ended: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    stored: Volume = field(default_factory=Volume)
    loaded: Volume = field(default_factory=Volume)

    def take(self, other: CopyReport) -> None:
        """Add what another rank reports."""
        for number, ranks in other.ended.items():
            self.ended[number] = self.ended.get(number, 0) + ranks
        self.failed |= other.failed
        self.stored.add(other.stored.size_bytes, other.stored.seconds)
        self.loaded.add(other.loaded.size_bytes, other.loaded.seconds)
