"""How far the host memory of checkpoints may grow. Free memory is measured again each time it grows.

Memory that was free at start may be in use an hour later. The engine core decides for all ranks, before it gives out a slot that was never
used. Where memory is short, the pool gives up old checkpoints instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from harvester.engine.checkpoints.worker.room import GIB, Room, memory_room
from harvester.policy.kv.hostpool import HostPool

log = logging.getLogger(__name__)

STEP_BYTES = 256 << 20  # least growth at once
LEFT_SHARE = 0.05  # share of all memory under the bound that growth leaves free
RETRY_S = 1.0


class Growth:
    """Growth of one pool, with slots of ``slot_bytes`` on all ranks together. No more slots are ever used than were held at one time."""

    def __init__(
        self, pool: HostPool[bytes], slot_bytes: int, room: Callable[[], Room] = memory_room, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._slot_bytes = max(1, slot_bytes)
        self._room, self._clock = room, clock
        self._all = pool.capacity
        self._opened = 0  # slots that may be used
        self._taken = 0  # of them, those that were used
        self._retry_at_s = 0.0
        self._told = False

    def prepare(self, slots: int) -> None:
        """``slots`` more are about to be held. Where memory is short, sets the pool's ``withheld``: slots that there is no memory for."""
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
