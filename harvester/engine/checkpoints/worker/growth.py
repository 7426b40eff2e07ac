"""How far the host memory of checkpoints may grow, asked again with each step that it grows by.

What was free at start may be somebody else's an hour later. The engine core decides for all ranks, before a slot is given out that was
never used: where memory is short the pool gives up old checkpoints instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from harvester.engine.checkpoints.worker.room import GIB, Room, memory_room
from harvester.policy.kv.hostpool import HostPool

log = logging.getLogger(__name__)

STEP_BYTES = 256 << 20  # asked for at once
LEFT_SHARE = 0.05  # of all memory under the bound, what growth leaves free
RETRY_S = 1.0


class Growth:
    """Of one pool, whose slots are ``slot_bytes`` on all ranks together. Slots are used densely: so many as were held at once at most."""

    def __init__(
        self, pool: HostPool[bytes], slot_bytes: int, room: Callable[[], Room] = memory_room, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._slot_bytes = max(1, slot_bytes)
        self._room, self._clock = room, clock
        self._all = pool.capacity
        self._opened = 0  # slots that may be used
        self._taken = 0  # of them, those that were
        self._retry_at_s = 0.0
        self._told = False

    def prepare(self, slots: int) -> None:
        """So many more are about to be held. Where memory is short the pool's ``withheld`` says how many slots there are no means for."""
        self._taken = max(self._taken, self._pool.used)
        wanted = min(self._all, self._pool.used + slots)
        if wanted <= self._opened or (self._pool.withheld and self._clock() < self._retry_at_s):
            return
        step = max(wanted, self._opened + STEP_BYTES // self._slot_bytes)
        self._open(min(self._all, step))

    def _open(self, slots: int) -> None:
        room = self._room()
        left = room.free_bytes - (slots - self._taken) * self._slot_bytes
        if left >= LEFT_SHARE * room.total_bytes:
            self._opened, self._pool.withheld = slots, 0
            return
        self._pool.withheld = self._all - max(self._opened, self._taken)
        self._retry_at_s = self._clock() + RETRY_S
        if not self._told:
            self._told = True
            log.warning("KV checkpoints stop growing at %.2f GiB of host memory (%s)", self._opened * self._slot_bytes / GIB, room)
