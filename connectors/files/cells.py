"""``python -m connectors.files.cells``: reads one sheet of a workbook to an Arrow IPC stream, within bounded memory and time.

The library ``python-calamine`` makes a rectangle of the cells between the first and the last one, so two cells of a small file can ask for
more memory than any machine has. Its allocation then ends the process, so this is a process of its own.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.base import check_unique, check_width, listed
from connectors.copied.widen import Columns, batch_of
from connectors.edge import reading
from connectors.errors import SourceError
from connectors.lakehouse.extra import extra

MAX_ADDRESS_BYTES = 4 << 30
MAX_READ_S = 300  # of CPU time, and of waiting for the process
BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Sheet:
    """``copy``: the workbook on a local disk. ``path`` and ``label``: how messages name it. ``cells``: the file to write."""

    copy: str
    path: str
    label: str
    table: str | None
    cells: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:  # pragma: no cover  # a process of its own
    """Read the `Sheet` that standard input names; print null, or the message of a `SourceError`, as JSON."""
    _limit()
    try:
        write_cells(Sheet(**json.load(sys.stdin)))
        told = None
    except SourceError as error:
        told = error.message
    sys.stdout.write(json.dumps(told))


def _limit() -> None:  # pragma: no cover
    for kind, most in ((resource.RLIMIT_AS, MAX_ADDRESS_BYTES), (resource.RLIMIT_CPU, MAX_READ_S), (resource.RLIMIT_CORE, 0)):
        _, allowed = resource.getrlimit(kind)
        limit = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(kind, (limit, limit))
    with suppress(OSError):  # not every container has it
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # first choice of the OOM killer


def write_cells(sheet: Sheet) -> None:
    """Write the rows below the header. Raises `SourceError` for a sheet that must be chosen, is not there or has no cells.

    The library holds the cells; the rows are made of them twice, to see their types and to write them, a few at a time.
    """
    library = extra("python_calamine", "excel", "a workbook")
    with _opening(sheet.path), library.CalamineWorkbook.from_path(sheet.copy) as book:
        cells, name = _chosen(book, sheet)
    header = next(_rows(cells), None)
    if header is None:
        raise _empty(sheet)
    names = _header(header, f"{sheet.label}, sheet {name!r}")
    columns = Columns(sheet.label, names)
    for row in _named(cells, names):
        columns.see(row)
    rows = _named(cells, names)
    with pa.ipc.new_stream(sheet.cells, columns.schema) as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            writer.write_batch(batch_of(columns.schema, batch))


def _chosen(book: Any, sheet: Sheet) -> tuple[Any, str]:
    """A sheet of the library and its name. Holds the cells of one sheet at a time."""
    known = [str(name) for name in book.sheet_names]
    if sheet.table is not None:
        if sheet.table not in known:
            raise SourceError(f"{sheet.label} has no sheet {sheet.table!r}; its sheets: {listed(known)}")
        return book.get_sheet_by_name(sheet.table), sheet.table
    filled = known if len(known) == 1 else [name for name in known if any(True for _ in _rows(book.get_sheet_by_name(name)))]
    if len(filled) > 1:
        raise SourceError(f"{sheet.label} has the sheets {listed(filled)}; choose one with --table")
    if not filled:
        raise _empty(sheet)
    return book.get_sheet_by_name(filled[0]), filled[0]


def _empty(sheet: Sheet) -> SourceError:
    return SourceError(f"{sheet.label} holds no rows; submit at least one row")


def _rows(cells: Any) -> Iterator[list[Any]]:
    """The rows of a sheet that have a cell."""
    return (row for row in cells.iter_rows() if any(value != "" for value in row))


def _named(cells: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """The rows below the header."""
    return (dict(zip(names, _plain(row), strict=True)) for row in islice(_rows(cells), 1, None))


@contextmanager
def _opening(path: str) -> Iterator[None]:
    try:
        with reading(path, "a workbook"):
            yield
    except SourceError as error:
        if error.__cause__ is not None and type(error.__cause__).__module__.startswith("python_calamine"):
            raise SourceError(f"{path} is no workbook, or is damaged: {error.__cause__}; save it again".replace("\n", " ")) from error
        raise


def _header(row: list[Any], where: str) -> list[str]:
    check_width(len(row), where)
    names = [str(_whole(value)).strip() or f"column_{number}" for number, value in enumerate(row, 1)]
    check_unique(names, f"the first row of {where}")
    return names


def _plain(row: list[Any]) -> list[Any]:
    """An empty cell becomes null, a failed formula its error as text, a time span Python's text of it."""
    return [None if value == "" else str(value) if isinstance(value, timedelta) else _whole(value) for value in row]


def _whole(value: Any) -> Any:
    """A whole number as an integer, since a workbook has doubles only. In a column with fractions it becomes a double again."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53 else value


if __name__ == "__main__":
    main()
