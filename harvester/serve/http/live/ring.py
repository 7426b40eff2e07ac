"""Ring file with the newest records of a time series: bounded in size and kept over restarts."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

_HEAD = struct.Struct("<Iq")  # checksum, number


class Ring:
    """The record of time step ``number`` is in slot ``number % slots``. One writer. Unknown values are NaN.

    A torn record, or one of an earlier turn, counts as missing. Nothing is synced to the disk: a machine that dies may lose some.
    Raises `OSError` where the file cannot be made, read or written.
    """

    def __init__(self, path: Path, step_s: int, slots: int, width: int) -> None:
        self.step_s, self.slots = step_s, slots
        self._values = struct.Struct(f"<{width}d")
        self._bytes = _HEAD.size + self._values.size
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        os.close(self._file)

    def write(self, number: int, values: Sequence[float]) -> None:
        body = struct.pack("<q", number) + self._values.pack(*values)
        os.pwrite(self._file, struct.pack("<I", zlib.crc32(body)) + body, number % self.slots * self._bytes)

    def read(self, number: int) -> tuple[float, ...] | None:
        """None where that step has no whole record."""
        return self._parsed(number, os.pread(self._file, self._bytes, number % self.slots * self._bytes))

    def last(self, until: int, count: int) -> Iterator[tuple[float, ...] | None]:
        """Records of the ``count`` steps that end with ``until``, in their order."""
        whole = os.pread(self._file, self.slots * self._bytes, 0)
        for number in range(until - count + 1, until + 1):
            at = number % self.slots * self._bytes
            yield self._parsed(number, whole[at : at + self._bytes])

    def _parsed(self, number: int, record: bytes) -> tuple[float, ...] | None:
        if len(record) < self._bytes:
            return None
        checksum, found = _HEAD.unpack_from(record)
        if found != number or zlib.crc32(record[4:]) != checksum:
            return None
        return self._values.unpack_from(record, _HEAD.size)
