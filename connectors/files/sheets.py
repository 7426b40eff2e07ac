"""A sheet of an Excel or OpenDocument file, by the library ``python-calamine``: a header, then rows."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.edge import quoted, reading
from connectors.errors import SourceError
from connectors.files.cells import MAX_ADDRESS_BYTES, MAX_READ_S, Sheet
from connectors.paths.files import DataFile
from connectors.paths.location import Location
from connectors.paths.names import source_name, stem_of
from connectors.processes.environment import environment

MAX_BYTES = 256 << 20
# Arrow's own pool would reserve 1 GiB of addresses.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class SheetReading:
    """One sheet; ``table`` names it if several sheets have cells. Numbers that are whole in every row are integers."""

    def __init__(self, location: Location, data_files: tuple[DataFile, ...], table: str | None) -> None:
        if len(data_files) > 1:
            raise SourceError(f"{location.label} holds {len(data_files)} workbooks; submit them one by one")
        self._location = location
        self._file = data_files[0]
        if self._file.size_bytes > MAX_BYTES:
            raise SourceError(f"{location.label} has {self._file.size_bytes:,} bytes; the limit for a workbook is {MAX_BYTES:,}")
        self.origin = Origin(location.uri, table)
        self.name = source_name(stem_of(Path(self._file.path).name))
        self._unstamped = secrets.token_hex(32)  # in place of a stamp: such a file may have changed by the next opening

    def fingerprint(self) -> str | None:
        with reading(self.origin.path, "a workbook"):
            info = self._location.files.get_file_info([self._file.path])[0]
        if info.type != fs.FileType.File:
            return None
        now = DataFile.of(self._location.files, info, self._file.relative)
        facts = ["sheet", now.relative, now.size_bytes, now.stamp or self._unstamped, self.origin.table]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with tempfile.TemporaryDirectory(prefix="harvester-sheet-") as folder:
            copy, cells = Path(folder, "workbook"), Path(folder, "cells.arrows")
            with (
                reading(self.origin.path, "a workbook"),
                self._location.files.open_input_stream(self._file.path, compression=None) as stream,
                copy.open("wb") as file,
            ):
                shutil.copyfileobj(stream, file, 1 << 20)
            self._read(copy, cells)
            copy.unlink()
            with pa.OSFile(str(cells)) as file, pa.ipc.open_stream(file) as reader:
                yield reader.schema, reader

    def _read(self, copy: Path, cells: Path) -> None:
        """Write the sheet to ``cells``, in a process that may end for want of memory."""
        sheet = Sheet(str(copy), self.origin.path, self._location.label, self.origin.table, str(cells))
        command = [sys.executable, "-m", "connectors.files.cells"]
        try:
            done = subprocess.run(
                command,
                input=sheet.to_json(),
                capture_output=True,
                text=True,
                check=True,
                timeout=MAX_READ_S,
                env=environment(**_ENVIRONMENT),
                cwd="/",
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{self._location.label} cannot be read {_reason(error)}") from error
        refusal = json.loads(done.stdout)
        if refusal is not None:
            raise SourceError(refusal)


def _reason(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    """Why the process ended, and what to do. A signal: an allocation failed, its CPU time was over, or the kernel was short of memory."""
    if isinstance(error, subprocess.TimeoutExpired) or error.returncode < 0 or "MemoryError" in error.stderr:
        return (
            f"within {MAX_ADDRESS_BYTES >> 30} GiB of memory and {MAX_READ_S} s: it has more than about 20 million cells, or one far from "
            "the others; save the rows as CSV, or in a new workbook"
        )
    said = error.stderr.strip().splitlines()
    return f"({quoted(said[-1]) if said else f'status {error.returncode}'}); save its rows as CSV"
