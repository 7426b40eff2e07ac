"""The number of changes that the ledger has committed, in a small file of its own beside it.

A log that is cut short, or a file that is an older copy, opens without an error but lacks changes that were acknowledged. So each change
is counted twice: in the store, within its own transaction, and here, after it. A store with a lower count than this file has lost
changes; one with a higher count was killed between the two, or its last changes were not durable ones, which this file counts with the
next durable one. Nothing here knows what kind of store it is.

A write is in the page cache when it returns and on the disk within a second. After a power cut the count may be too low: then losses are
missed, but none is reported falsely.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

from connectors.durable import storage_error, sync_folder
from connectors.errors import DamageError

log = logging.getLogger("harvester.ledger")

SYNC_S = 1.0


class CommitCount:
    """The file at ``path``: 16 hex digits, and a checksum of them. It is made with the first `write`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._synced_at_s = 0.0  # of the steady clock

    def read(self) -> int | None:
        """The count; None where there is no file, so nothing is known. Raises `DamageError` and `StorageError`."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        with suppress(ValueError):
            count = int(data[:16], 16)
            if data == _line(count):
                return count
        raise DamageError(
            f"{self.path} is damaged, so nobody can tell whether the ledger is whole; stop the server and run: harvester repair"
        )

    def write(self, count: int) -> None:
        """Write the count. A disk error is only logged: the ledger loses no change, only the proof that it is complete."""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
                os.pwrite(self._file, _line(count), 0)
                sync_folder(self.path.parent)
            else:
                os.pwrite(self._file, _line(count), 0)
            if time.monotonic() - self._synced_at_s >= SYNC_S:
                os.fdatasync(self._file)
                self._synced_at_s = time.monotonic()
        except OSError as error:
            log.warning("commit_count %s", storage_error("write", self.path, error).message)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # told with the write before
                os.fdatasync(self._file)
            os.close(self._file)
            self._file = None


def _line(count: int) -> bytes:
    digits = b"%016x" % count
    return b"%b %08x\n" % (digits, zlib.crc32(digits))
