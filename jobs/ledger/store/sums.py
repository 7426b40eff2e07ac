"""Checksums of the pages of the ledger's SQLite file, beside it: SQLite's own log has some, its pages have none.

Pages change only while the log is copied into the file (a checkpoint), and only the store does that: by a statement, or when it closes
the last connection (`jobs.ledger.store.connection`). Those that a checkpoint will change
are marked unknown before it and summed after it, so that a process killed between the two leaves no false alarm.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUMS = ".sums"  # in place of the ledger's suffix
_MAGIC = b"harvester pages 1"
_UNKNOWN = 0  # in place of a page's sum; a sum of 0 is kept as 1
_WAL_HEADER, _FRAME_HEADER = 32, 24


class PageSums:
    """Of the database at ``path``, in a file with suffix ``.sums``. Safe to call from several processes."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._log = path.with_name(path.name + "-wal")
        self._path = path.with_suffix(SUMS)

    def damaged(self) -> int | None:
        """The number (from 1) of a page that is not as it was written; None where all that are known are."""
        for _ in range(3):  # a checkpoint of another process may run between the two reads
            told, found = self._read(), self._pages(None)
            bad = [number for number, (one, other) in enumerate(zip(told, found, strict=False), 1) if one not in (_UNKNOWN, other)]
            if not bad and len(found) >= len(told):
                return None
        return bad[0] if bad else len(found) + 1

    def known(self) -> bool:
        """Whether every page of the file has a sum."""
        told = self._read()
        return len(told) >= len(self._pages(None, only_count=True)) and _UNKNOWN not in told

    def take(self) -> None:
        """Sum the pages that have none, once the caller has found them whole by other means."""
        with self._locked():
            told, found = self._read(), self._pages(None)
            self._write(array("I", [(told[i] if i < len(told) else _UNKNOWN) or one for i, one in enumerate(found)]))

    def around(self, checkpoint: Callable[[], None]) -> None:
        """Run ``checkpoint``, and sum the pages that it may have changed."""
        with self._locked():
            told, changed = self._read(), self._logged()
            self._write(array("I", [_UNKNOWN if number in changed else one for number, one in enumerate(told, 1)]))
            checkpoint()
            changed |= self._logged()  # of a change that came meanwhile
            count = len(self._pages(None, only_count=True))
            changed |= set(range(len(told) + 1, count + 1))
            fresh = self._pages(changed)
            self._write(array("I", [fresh[i] if i + 1 in changed or i >= len(told) else told[i] for i in range(count)]))

    def forget_before(self, checkpoint: Callable[[], None]) -> None:
        """Run ``checkpoint`` on a file that nobody found whole: the pages that it may change are unknown from now on."""
        if not self._logged():
            checkpoint()
            return
        with self._locked():
            told, changed = self._read(), self._logged()
            self._write(array("I", [_UNKNOWN if number in changed else one for number, one in enumerate(told, 1)]))
            checkpoint()

    def _logged(self) -> set[int]:
        """Numbers of the pages in the log; some may be of an earlier round."""
        try:
            data = self._log.read_bytes()
        except FileNotFoundError:
            return set()
        page_bytes = int.from_bytes(data[8:12], "big") if len(data) >= _WAL_HEADER else 0
        if page_bytes == 0:
            return set()
        starts = range(_WAL_HEADER, len(data) - _FRAME_HEADER + 1, _FRAME_HEADER + page_bytes)
        return {int.from_bytes(data[start : start + 4], "big") for start in starts}

    def _pages(self, only: set[int] | None, *, only_count: bool = False) -> list[int]:
        """Sums of the pages of the file as it is; 0 for those that are not in ``only``."""
        with self._database.open("rb") as file:
            page_bytes = _page_bytes(file.read(18))
            count = -(-file.seek(0, os.SEEK_END) // page_bytes)
            sums = [_UNKNOWN] * count
            for index in () if only_count else range(count) if only is None else sorted(one - 1 for one in only if one <= count):
                file.seek(index * page_bytes)
                sums[index] = zlib.crc32(file.read(page_bytes)) or 1
        return sums

    def _read(self) -> array[int]:
        """The checksums; empty where the file is missing or damaged, so that nothing is known."""
        try:
            checksum, magic, body = self._path.read_bytes().split(b"\n", 2)
        except (FileNotFoundError, ValueError):
            return array("I")
        if magic != _MAGIC or checksum != b"%08x" % zlib.crc32(body) or len(body) % 4:
            return array("I")
        return array("I", body)

    def _write(self, sums: array[int]) -> None:
        body = sums.tobytes()
        with self._path.open("r+b") as file:
            file.write(b"%08x\n%b\n" % (zlib.crc32(body), _MAGIC) + body)
            file.truncate()
            file.flush()
            os.fdatasync(file.fileno())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _page_bytes(head: bytes) -> int:
    """Page size from the header of an SQLite file; 4096 where the header has no valid one."""
    told = int.from_bytes(head[16:18], "big")
    told = 65536 if told == 1 else told
    return told if told >= 512 and told & (told - 1) == 0 else 4096
