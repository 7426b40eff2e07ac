"""A sheet of an Excel or OpenDocument file, by the library ``python-calamine``: a header, then rows."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyarrow import fs

from connectors.base import check_unique, listed
from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.copied.widen import Columns, batch_of
from connectors.edge import reading
from connectors.errors import SourceError
from connectors.lakehouse.extra import extra
from connectors.paths.files import DataFile
from connectors.paths.location import Location
from connectors.paths.names import source_name, stem_of

MAX_BYTES = 256 << 20
BATCH_ROWS = 1024


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

    def fingerprint(self) -> str | None:
        with reading(self.origin.path, "a workbook"):
            info = self._location.files.get_file_info([self._file.path])[0]
        if info.type != fs.FileType.File:
            return None
        now = DataFile.of(self._location.files, info, self._file.relative)
        return hashlib.sha256(json.dumps(["sheet", now.relative, now.size_bytes, now.stamp, self.origin.table]).encode()).hexdigest()

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        library = extra("python_calamine", "excel", "a workbook")
        with tempfile.NamedTemporaryFile(prefix="harvester-sheet-") as copy:
            with reading(self.origin.path, "a workbook"), self._location.files.open_input_stream(self._file.path) as stream:
                while piece := stream.read(1 << 20):
                    copy.write(piece)
            copy.flush()
            with _opening(self.origin.path), library.CalamineWorkbook.from_path(copy.name) as book:
                cells, name = self._cells(book)
        names = _header(cells, f"{self._location.label}, sheet {name!r}")
        rows = [dict(zip(names, row, strict=True)) for row in map(_plain, cells[1:])]
        columns = Columns(names)
        for row in rows:
            columns.see(row)
        schema = columns.schema
        yield schema, (batch_of(schema, rows[start : start + BATCH_ROWS]) for start in range(0, len(rows), BATCH_ROWS))

    def _cells(self, book: Any) -> tuple[list[list[Any]], str]:
        known = [str(name) for name in book.sheet_names]
        if self.origin.table is not None:
            if self.origin.table not in known:
                raise SourceError(f"{self._location.label} has no sheet {self.origin.table!r}; its sheets: {listed(known)}")
            return self._sheet(book, self.origin.table), self.origin.table
        filled = {name: cells for name in known if (cells := self._sheet(book, name))}
        if len(filled) > 1:
            raise SourceError(f"{self._location.label} has the sheets {listed(list(filled))}; choose one with --table")
        if not filled:
            raise SourceError(f"{self._location.label} holds no rows; submit at least one row")
        name, cells = next(iter(filled.items()))
        return cells, name

    def _sheet(self, book: Any, name: str) -> list[list[Any]]:
        cells = [list(row) for row in book.get_sheet_by_name(name).to_python(skip_empty_area=True)]
        return [row for row in cells if any(value != "" for value in row)]


@contextmanager
def _opening(path: str) -> Iterator[None]:
    try:
        with reading(path, "a workbook"):
            yield
    except SourceError as error:
        if error.__cause__ is not None and type(error.__cause__).__module__.startswith("python_calamine"):
            raise SourceError(f"{path} is no workbook, or is damaged: {error.__cause__}; save it again".replace("\n", " ")) from error
        raise


def _header(cells: list[list[Any]], where: str) -> list[str]:
    names = [str(_whole(value)).strip() or f"column_{number}" for number, value in enumerate(cells[0], 1)]
    check_unique(names, f"the first row of {where}")
    return names


def _plain(row: list[Any]) -> list[Any]:
    """An empty cell becomes null, a failed formula its error as text, a time span Python's text of it."""
    return [None if value == "" else str(value) if isinstance(value, timedelta) else _whole(value) for value in row]


def _whole(value: Any) -> Any:
    """A whole number as an integer, since a workbook has doubles only. In a column with fractions it becomes a double again."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53 else value
