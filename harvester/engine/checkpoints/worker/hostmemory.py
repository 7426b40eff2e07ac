"""Host memory for checkpoints, on CPU: populated a little ahead of its use, in huge pages where there are any.

The first write to a page costs several times the copy. A copy that a step waits for should not pay for that, nor should the step that is
computed meanwhile: pages are populated without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

import numpy as np

AHEAD = 16  # slots beyond the highest one used
PIECE_BYTES = 1 << 21  # populated at once, a huge page; the thread copies nothing meanwhile
POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, from 5.14 on: contents stay as they are


class HostMemory:
    """``rows``: [slots, block_bytes]."""

    def __init__(self, slots: int, block_bytes: int) -> None:
        self._bytes = slots * block_bytes
        size = max(1, self._bytes)
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # not Linux, or a kernel without huge pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.rows: np.ndarray = np.frombuffer(self._map, np.uint8)[: self._bytes].reshape(slots, block_bytes)
        self._block_bytes = block_bytes
        self._taken = 0
        self._wanted = min(self._bytes, AHEAD * block_bytes)
        self._madvise = ctypes.CDLL(None).madvise if sys.platform == "linux" else None  # `mmap.madvise` holds the interpreter's lock

    def use(self, slot: int) -> None:
        """The slot is about to be written to."""
        self._wanted = max(self._wanted, min(self._bytes, (slot + 1 + AHEAD) * self._block_bytes))

    def prepare(self) -> bool:
        """Populate the next piece; False if enough are populated."""
        if self._taken >= self._wanted:
            return False
        begin, self._taken = self._taken, self._taken + PIECE_BYTES
        address, size = ctypes.c_void_p(self.rows.ctypes.data + begin), ctypes.c_size_t(min(PIECE_BYTES, self._bytes - begin))
        if self._madvise is None or self._madvise(address, size, POPULATE_WRITE):
            self._taken = self._bytes  # an older kernel: pages come as they are written to
        return True
