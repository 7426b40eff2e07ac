"""Checksums of host blocks, where copies are made by a device: what was copied is read back into scratch rows and compared.

Each read-back follows its copy on the same stream, before anything that may write to the block again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from harvester.engine.checkpoints.worker.pieces import HostPieces

SCRATCH_SLOTS = 16


class Checks:
    """``host``: the slots; ``scratch``: `SCRATCH_SLOTS` rows of the same size."""

    def __init__(self, host: HostPieces, scratch: HostPieces) -> None:
        self._host, self._scratch = host, scratch
        if any(scratch.row(row) is None for row in range(SCRATCH_SLOTS)):
            raise MemoryError("checkpoint.verify: no memory to read blocks back into")
        self._free = list(range(SCRATCH_SLOTS))
        self._sums: dict[int, int] = {}

    @property
    def room(self) -> int:
        """Scratch rows that are free."""
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Take up to ``most`` free scratch rows."""
        taken, self._free = self._free[:most], self._free[most:]
        return taken

    def whole(self, slot: int) -> bool:
        """Whether the slot holds what was stored in it."""
        return self._sums.get(slot) == _sum(self._host, slot)

    def ended(self, store: bool, slots: Sequence[int], rows: Sequence[int]) -> bool:
        """Whether what was read back into ``rows`` equals what was copied to or from ``slots``. Frees the rows."""
        ok = True
        for slot, row in zip(slots, rows, strict=True):
            if store:
                self._sums[slot] = _sum(self._host, slot)
            ok &= self._sums.get(slot) == _sum(self._scratch, row)
        self._free.extend(rows)
        return ok


def _sum(rows: HostPieces, slot: int) -> int:
    row = rows.row(slot)
    assert row is not None, f"row {slot} was copied to and is not there"
    return zlib.crc32(row.data)
