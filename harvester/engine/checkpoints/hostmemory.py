"""Host memory for checkpoints, on CPU: taken from the machine a little ahead of its use.

A page costs several times its copy when it is written to for the first time. A copy that a step waits for should not pay for that.
"""

from __future__ import annotations

import mmap

import numpy as np

AHEAD = 16  # slots beyond the highest one used
PIECE_BYTES = 1 << 16  # taken at once; Python stands still meanwhile
POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, from 5.14 on: contents stay as they are


class HostMemory:
    """``rows``: [slots, block_bytes]."""

    def __init__(self, slots: int, block_bytes: int) -> None:
        self._bytes = slots * block_bytes
        self._map = mmap.mmap(-1, max(1, self._bytes))
        self.rows: np.ndarray = np.frombuffer(self._map, np.uint8)[: self._bytes].reshape(slots, block_bytes)
        self._block_bytes = block_bytes
        self._taken = 0
        self._wanted = min(self._bytes, AHEAD * block_bytes)

    def use(self, slot: int) -> None:
        """It is about to be written to."""
        self._wanted = max(self._wanted, min(self._bytes, (slot + 1 + AHEAD) * self._block_bytes))

    def prepare(self) -> bool:
        """Take the next piece, unless there is enough."""
        if self._taken >= self._wanted:
            return False
        begin, self._taken = self._taken, self._taken + PIECE_BYTES
        try:
            self._map.madvise(POPULATE_WRITE, begin, min(PIECE_BYTES, self._bytes - begin))
        except OSError:  # an older kernel: pages come as they are written to
            self._taken = self._bytes
        return True
