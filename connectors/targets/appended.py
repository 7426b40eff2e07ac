"""JSON lines or CSV that grow part by part, with a journal beside them that says which parts the file holds and where they end."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, BinaryIO

import pyarrow as pa

from connectors.base import Closing
from connectors.durable import publish, storage_error, sweep, sync_folder
from connectors.errors import StorageError
from connectors.parquet.parts import Part
from connectors.targets.lines import csv_lines, json_lines

PARTS_AT_ONCE = 64  # between two syncs
CHANGED = 0.25  # of the rows: from there on the file is written anew before the end


class LineForm(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


@dataclass(slots=True)
class _Written:
    """What the journal records. ``inode`` tells whether the file was replaced."""

    inode: int = 0
    end_bytes: int = 0
    editions: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # rows by part

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


class AppendedFile(Closing):
    """A `Target`. Parts come in the order in which they were finished.

    Rows are appended and synced, then the journal ``.NAME.harvester`` is. A writer that dies in between leaves rows that the journal does
    not know; the next one cuts them off and appends them again. Where anything else does not fit (a part that is gone, a file that was
    replaced) the file is written anew. For parts that were retried this waits until they hold a quarter of the rows, or for the end; until
    then their old rows stay. While it is open the journal is locked.
    """

    def __init__(self, path: Path, form: LineForm, job: str) -> None:
        self._path = path
        self._form = form
        self._job = job
        with self._storing():
            if path.exists() and not is_appended(path):
                raise StorageError(f"{path} is there already and was not written by --into; move it away or name another file")
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent)
            self._journal: IO[bytes] = _journal_of(path).open("a+b")
        try:
            self._lock()
            self._written = self._known()
        except BaseException:
            self._journal.close()
            raise

    def update(self, parts: Sequence[Part], *, is_final: bool) -> int:
        with self._storing():
            written = self._written
            now = {part.name: part.edition for part in parts}
            changed = [name for name, edition in written.editions.items() if now.get(name) != edition]
            if not self._fits() or not now.keys() >= set(changed) or self._is_due(changed, is_final):
                self._rewrite(parts)
                return self._written.rows
            new = [part for part in parts if part.name not in written.editions]
            for start in range(0, len(new), PARTS_AT_ONCE):
                self._append(new[start : start + PARTS_AT_ONCE])
            return written.rows

    def _is_due(self, changed: Sequence[str], is_final: bool) -> bool:
        """Whether the rows of changed parts are to be replaced now. A retry changes parts one by one, and each time all is written."""
        rows = sum(self._written.counts[name] for name in changed)
        return bool(changed) and (is_final or rows >= CHANGED * self._written.rows)

    def _append(self, parts: Sequence[Part]) -> None:
        written = self._written
        with self._path.open("r+b") as out:
            out.truncate(written.end_bytes)
            out.seek(written.end_bytes)
            lines = list(self._write(out, parts))
            out.flush()
            os.fsync(out.fileno())
        self._note(lines)

    def _rewrite(self, parts: Sequence[Part]) -> None:
        """Write the file again from its first row. Until the journal has its new head, the next writer starts over."""
        self._journal.truncate(0)
        os.fsync(self._journal.fileno())
        self._written = _Written()
        with publish(self._path) as out:
            lines = list(self._write(out, parts))
            inode = os.fstat(out.fileno()).st_ino
        self._written.inode = inode
        self._note([{"job": self._job, "form": self._form, "inode": inode}, *lines])
        sync_folder(self._path.parent)

    def _write(self, out: BinaryIO, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
        for part in parts:
            table = part.read()
            if self._form is LineForm.CSV:
                csv_lines(out, table.schema, table.to_batches(), header=out.tell() == 0)
            else:
                for batch in table.to_batches():
                    out.writelines(line.encode("utf-8", "replace") for line in json_lines(batch))
            yield {"part": part.name, "edition": part.edition, "end_bytes": out.tell(), "rows": table.num_rows}

    def _note(self, lines: Sequence[dict[str, Any]]) -> None:
        self._journal.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        for line in lines:
            _take(self._written, line)

    def _known(self) -> _Written:
        """What the journal records of the file, without a line torn by a writer that died. Raises `StorageError` for another job's file."""
        if not self._path.exists():
            return _Written()
        self._journal.seek(0)
        head, *lines = self._journal.read().split(b"\n")[:-1] or [b"null"]
        written = _Written()
        about = json.loads(head)
        if about is None:
            return written
        if about["job"] != self._job or about["form"] != self._form:
            raise StorageError(f"{self._path} holds the results of job {about['job']}; move it away or name another file")
        written.inode = about["inode"]
        for line in lines:
            _take(written, json.loads(line))
        # A line without its end would spoil the next one.
        self._journal.truncate(len(head) + 1 + sum(len(line) + 1 for line in lines))
        return written

    def _fits(self) -> bool:
        """Whether the file is the one that the journal describes, and at least as long."""
        if self._written.inode == 0 or not self._path.exists():
            return False
        stat = self._path.stat()
        return stat.st_ino == self._written.inode and stat.st_size >= self._written.end_bytes

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(f"another process writes to {self._path} now; wait for it, or name another file") from error

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error("write", self._path, error) from error
        except pa.ArrowException as error:
            raise StorageError(f"cannot write {self._path}: {str(error).splitlines()[0]}; check the parts of job {self._job}") from error

    def close(self) -> None:
        self._journal.close()


def is_appended(path: Path) -> bool:
    """Whether a file is one that `AppendedFile` writes to."""
    return _journal_of(path).exists()


def _journal_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.harvester")


def _take(written: _Written, line: dict[str, Any]) -> None:
    if "part" in line:
        written.editions[line["part"]] = line["edition"]
        written.end_bytes = line["end_bytes"]
        written.counts[line["part"]] = line["rows"]
