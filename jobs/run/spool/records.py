"""Rows of a leased slice as they finish: appended to a file, so that whoever takes the slice over does not compute them again.

A record is a line: eight hex digits of its checksum, a space, and JSON that says that a row was begun (``[7]``), that it was then cancelled
(``["cancelled", 7]``), or gives its result (``{...}``). A record whose checksum does not match is ignored: damage costs its row a
recomputation. That covers a torn last line, a flipped bit, and a block of zeros or of another spool; also a line of an earlier version,
which had no checksum. To versions that knew no cancelled rows their records are damage.

The checksum is CRC-32 (`zlib.crc32`): it finds every flip of up to three bits and every burst of 32, misses any other damage
once in 4 billion times, and costs 1 microsecond for each KB. It guards against accidents, not against forgery.

The file survives the death of the process at any byte. It is not fsynced: after a power loss rows are computed again, never lost.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from connectors.errors import StorageError
from jobs.result import Row

log = logging.getLogger("harvester.spool")

_CHECKSUM_CHARS = 8


class Spool:
    """Opened by one runner for one lease. `begin`, `cancel` and `finish` are cheap enough for the event loop (one small write each)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = _name(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = _records(path)
            self.rows, self.begins, self.damaged = found.rows, found.begins, found.damaged
            self._cancels = found.cancels
            self._file = _opened(path)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}; free space or make the state folder writable") from error

    def leave_out_others(self, row_ids: range) -> None:
        """Forget the records of other rows: of a slice that a lost split gave the same id."""
        self.rows = {row_id: row for row_id, row in self.rows.items() if row_id in row_ids}
        self.begins = Counter({row_id: count for row_id, count in self.begins.items() if row_id in row_ids})

    def begin(self, row_id: int) -> None:
        self.begins[row_id] += 1
        self._append([row_id])

    def cancel(self, row_id: int) -> None:
        """Record that work on the row ended although its engine lives: see `unfinished`."""
        self._cancels[row_id] += 1
        self._append(["cancelled", row_id])

    def finish(self, row: Row) -> None:
        self.rows[row.row_id] = row
        self._append(row.to_json())

    def _append(self, item: list[int | str] | dict[str, Any]) -> None:
        payload = json.dumps(item).encode()
        data = b"%08x %b\n" % (zlib.crc32(payload, self._name), payload)
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}; free some space; the job then continues by itself") from error
        if written < len(data):  # a disk that fills up takes a part and says nothing
            raise StorageError(f"cannot write {self.path}: no space left; free some space; the job then continues by itself")

    def unfinished(self, row_id: int) -> int:
        """How often the row was begun, and neither finished nor cancelled, as far as known.

        0 where records are damaged: its result may be among them.
        """
        return 0 if self.damaged else self.begins[row_id] - self._cancels[row_id]

    @property
    def recomputed(self) -> int:
        """Rows of the slice that were begun more than once."""
        return sum(1 for count in self.begins.values() if count > 1)

    def close(self) -> None:
        os.close(self._file)


class _Records:
    """The intact records of a spool; ``damaged`` counts all other lines."""

    def __init__(self, data: bytes, name: int) -> None:
        self.rows: dict[int, Row] = {}
        self.begins: Counter[int] = Counter()
        self.cancels: Counter[int] = Counter()
        self.damaged = sum(not self._take(line, name) for line in data.split(b"\n") if line)

    def _take(self, line: bytes, name: int) -> bool:
        """Take in what a record says. False for a line that is not as it was written, or that another version wrote."""
        payload = line[_CHECKSUM_CHARS + 1 :]
        if line[: _CHECKSUM_CHARS + 1] != b"%08x " % zlib.crc32(payload, name):
            return False
        try:
            match json.loads(payload):
                case [int(row_id)]:
                    self.begins[row_id] += 1
                case ["cancelled", int(row_id)]:
                    self.cancels[row_id] += 1
                case values:
                    row = Row.from_json(values)
                    self.rows[row.row_id] = row
        except ValueError:
            return False
        return True


def spooled_rows(path: Path) -> dict[int, Row]:
    """The finished rows of a spool that nobody writes to any more, by ``row_id``."""
    try:
        return _records(path).rows
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check the disk of the state folder") from error


def _records(path: Path) -> _Records:
    """A file that the disk cannot read any more is moved aside: its rows are computed again."""
    try:
        found = _Records(path.read_bytes(), _name(path))
    except FileNotFoundError:
        return _Records(b"", 0)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        path.replace(path.with_suffix(".unreadable"))
        log.warning("spool_unreadable path=%s", path)
        return _Records(b"", 0)
    if found.damaged:
        log.warning("spool_damaged path=%s records=%d whole_rows=%d", path, found.damaged, len(found.rows))
    return found


def _opened(path: Path) -> int:
    """Open the file to append at the start of a line: a writer that died may have torn the last line."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, b"\n")
    except BaseException:
        os.close(file)
        raise
    return file


def _name(path: Path) -> int:
    """Initial value of this spool's checksums, from its folder's and its own name: a record of another job or slice does not match."""
    return zlib.crc32("/".join(path.parts[-3:]).encode())
