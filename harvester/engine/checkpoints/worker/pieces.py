"""Host memory that a device copies to and from: allocated piece by piece as it is used, each piece pinned when it is allocated.

A copy engine reads and writes pinned pages beside everything else; a copy of other pages blocks the thread that asks for it. Pieces are
anonymous memory, not in ``/dev/shm``, which is small in a container. They are mapped here and registered with the driver, rather than taken
from PyTorch's pinned allocator. That one rounds up to powers of two, keeps freed memory, and has no huge pages. Where pinning fails it has
no memory to give; here the same pages are used unpinned.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from harvester.engine.checkpoints.worker.room import memlock_bytes

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20  # pinned at once: long enough for few calls, short enough for a thread that waits for one


@dataclass(frozen=True, slots=True)
class _Piece:
    map: mmap.mmap
    rows: np.ndarray  # [slots, block_bytes]
    address: int
    pinned: bool


class HostPieces:
    """``slots`` of ``block_bytes``. One thread uses slots; another one may call `prepare`, so that memory is there before its use.

    ``pin``: takes an address and bytes, returns whether the range is pinned; ``unpin``: takes the address of such a range.
    """

    def __init__(
        self,
        slots: int,
        block_bytes: int,
        pin: Callable[[int, int], bool],
        unpin: Callable[[int], None],
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._slots, self._block_bytes = slots, block_bytes
        self._each = max(1, piece_bytes // max(1, block_bytes))  # slots of a piece
        self._pin, self._unpin = pin, unpin
        self._pieces: list[_Piece] = []
        self._most = -(-slots // self._each)
        self._wanted = min(1, self._most)
        self._pinning = True  # until it fails
        self._lock = threading.Lock()

    @property
    def taken_bytes(self) -> int:
        return sum(len(piece.map) for piece in self._pieces)

    @property
    def pinned_bytes(self) -> int:
        return sum(len(piece.map) for piece in self._pieces if piece.pinned)

    @property
    def full(self) -> bool:
        """Whether no further piece will be allocated."""
        return len(self._pieces) >= self._most

    def use(self, slot: int) -> bool:
        """The slot is about to be written to; from the middle of a piece on, the next one is wanted too. Whether to `prepare` more."""
        assert 0 <= slot < self._slots, f"host slot {slot} of {self._slots}"
        ahead = (slot + self._each // 2) // self._each + 1
        self._wanted = max(self._wanted, min(self._most, max(slot // self._each + 1, ahead)))
        return len(self._pieces) < self._wanted

    def ready(self, slot: int) -> bool:
        return slot // self._each < len(self._pieces)

    def prepare(self) -> bool:
        """Allocate the next piece, if it is wanted. Returns whether it did."""
        with self._lock:
            return len(self._pieces) < self._wanted and self._take()

    def row(self, slot: int) -> np.ndarray | None:
        """The slot's memory, [block_bytes]; None if the machine has no more. Allocates missing pieces, which may take a while."""
        while not self.ready(slot):
            with self._lock:
                if not self.ready(slot) and not self._take():
                    return None
        row: np.ndarray = self._pieces[slot // self._each].rows[slot % self._each]
        return row

    def address(self, slot: int) -> int | None:
        """Address of the slot's row; None as for `row`."""
        if not self.ready(slot) and self.row(slot) is None:
            return None
        return self._pieces[slot // self._each].address + slot % self._each * self._block_bytes

    def close(self) -> None:
        """Give it all back. Nothing may be copied to or from it any more."""
        with self._lock:
            pieces, self._pieces, self._most, self._wanted = self._pieces, [], 0, 0
        for piece in pieces:
            if piece.pinned:
                self._unpin(piece.address)

    def _take(self) -> bool:
        if len(self._pieces) >= self._most:
            return False
        slots = min(self._each, self._slots - len(self._pieces) * self._each)
        size = -(-max(1, slots * self._block_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            self._most = self._wanted = len(self._pieces)
            log.warning("KV checkpoints stop growing at %d MiB of host memory in this worker: %s", self.taken_bytes >> 20, error)
            return False
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):  # a child that copies pinned pages on write would part them from the device's
            with suppress(AttributeError, OSError):
                memory.madvise(getattr(mmap, advice))
        rows: np.ndarray = np.frombuffer(memory, np.uint8)[: slots * self._block_bytes].reshape(slots, self._block_bytes)
        address = int(np.frombuffer(memory, np.uint8).ctypes.data)
        self._pieces.append(_Piece(memory, rows, address, self._pinned(address, size)))
        return True

    def _pinned(self, address: int, size_bytes: int) -> bool:
        if self._pinning and not self._pin(address, size_bytes):
            self._pinning = False
            limit = memlock_bytes()
            log.warning(
                "KV checkpoints: host memory beyond %d MiB cannot be pinned, copies to it keep the worker waiting; "
                "raise the limit on locked memory (ulimit -l: %s) or lower checkpoint.host_gib",
                self.pinned_bytes >> 20,
                "none" if limit is None else f"{limit >> 10} KiB",
            )
        return self._pinning
