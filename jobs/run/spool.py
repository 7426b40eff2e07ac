"""Rows of a leased slice as they finish: appended to a file, so that whoever takes the slice over does not compute them again.

A line says that a row was begun (``[7]``) or gives its result (``{...}``); no part of a line reads as a line. The file survives the
death of the process at any byte: a torn last line is ignored. It is not fsynced: after a power loss rows are computed again, never lost.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from connectors.errors import StorageError
from jobs.result import Row


class Spool:
    """Opened by one runner for one lease. `begin` and `finish` are cheap enough for the event loop (one small write each)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[int, Row] = {}
        self.begins: Counter[int] = Counter()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._load(path.read_bytes())
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._file, b"\n")  # ends a line that a death has torn
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}; free space or make the state folder writable") from error

    def _load(self, data: bytes) -> None:
        for item in _items(data):
            if isinstance(item, Row):
                self.rows[item.row_id] = item
            else:
                self.begins[item] += 1

    def begin(self, row_id: int) -> None:
        self.begins[row_id] += 1
        self._append(f"[{row_id}]")

    def finish(self, row: Row) -> None:
        self.rows[row.row_id] = row
        self._append(json.dumps(row.to_json()))

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}; free some space; the job then continues by itself") from error
        if written < len(data):  # a disk that fills up takes a part and says nothing
            raise StorageError(f"cannot write {self.path}: no space left; free some space; the job then continues by itself")

    @property
    def recomputed(self) -> int:
        """Rows of the slice that were begun more than once."""
        return sum(1 for count in self.begins.values() if count > 1)

    def close(self) -> None:
        os.close(self._file)


def spooled_rows(path: Path) -> dict[int, Row]:
    """The finished rows of a spool that nobody writes to any more, by ``row_id``. The file stays as it is."""
    try:
        return {item.row_id: item for item in _items(path.read_bytes()) if isinstance(item, Row)}
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check the disk of the state folder") from error


def _items(data: bytes) -> Iterator[Row | int]:
    """Finished rows, and the ids of rows begun, in the order of the file."""
    for line in data.split(b"\n"):
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, list) and len(item) == 1 and isinstance(item[0], int):
            yield item[0]
        elif isinstance(item, dict):
            yield Row.from_json(item)
