"""Slots and KV blocks that are kept free for online arrivals (after FastServe 4.2: slots kept for new jobs)."""

from __future__ import annotations

from typing import Protocol

from harvester.policy.model.arrivals import BurstReserve


class Reserve(Protocol):
    """A rule for the room that offline work leaves free."""

    def arrival(self, now_s: float, blocks: int) -> None:
        """An online request has come, whose prompt needs ``blocks`` KV blocks that no running request holds."""

    def reserve(self, now_s: float) -> tuple[int, int] | None:
        """Slots and KV blocks to keep; None: the fixed share of `PolicyConfig`. Changes nothing."""


class FixedReserve:
    """`PolicyConfig.reserved_slots` and `PolicyConfig.reserved_kv`, whatever arrives."""

    def arrival(self, now_s: float, blocks: int) -> None:
        """Arrivals change nothing."""

    def reserve(self, now_s: float) -> tuple[int, int] | None:
        return None


__all__ = ["BurstReserve", "FixedReserve", "Reserve"]
