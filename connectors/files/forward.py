"""Files that can only be read from start to end: JSON lines, CSV, Arrow IPC, text."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyarrow import fs

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.edge import reading
from connectors.files.delimited import csv_rows
from connectors.files.documents import document_rows
from connectors.files.form import TextForm
from connectors.files.ipc import ipc_rows
from connectors.files.jsonl import jsonl_rows
from connectors.parquet.source import name_of
from connectors.paths.files import DataFile
from connectors.paths.location import Location
from connectors.paths.names import FileKind

_ROWS: dict[FileKind, Callable[[fs.FileSystem, tuple[DataFile, ...], TextForm], Rows]] = {
    FileKind.ARROW: ipc_rows,
    FileKind.JSONL: jsonl_rows,
    FileKind.CSV: csv_rows,
    FileKind.TEXT: document_rows,
}


class FilesReading:
    """The rows of ``data_files``, which are all of one kind, in their order."""

    def __init__(self, location: Location, kind: FileKind, data_files: tuple[DataFile, ...], form: TextForm = TextForm()) -> None:
        self.origin = Origin(location.uri)
        self.name = name_of(location.path)
        self._location = location
        self._kind = kind
        self._data_files = data_files
        self._form = form
        self._unstamped = secrets.token_hex(32)  # in place of a stamp: such a file may have changed by the next opening

    def fingerprint(self) -> str | None:
        """Over each file's path below the root, size and stamp, as they are now; None where one is gone."""
        files = self._location.files
        with reading(self.origin.path, self._kind):
            infos = files.get_file_info([data_file.path for data_file in self._data_files])
            if any(info.type != fs.FileType.File for info in infos):
                return None
            now = [DataFile.of(files, info, old.relative) for info, old in zip(infos, self._data_files, strict=True)]
        facts = [[data_file.relative, data_file.size_bytes, data_file.stamp or self._unstamped] for data_file in now]
        return hashlib.sha256(json.dumps([self._kind, facts, *self._told()]).encode()).hexdigest()

    def _told(self) -> list[object]:
        """The user's options for the files; empty for the defaults."""
        return [] if self._form == TextForm() else [self._form.encoding, self._form.ragged]

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        yield _ROWS[self._kind](self._location.files, self._data_files, self._form)
