"""Workbooks: how many cells are held at once, and what is said if their process ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pytest

from connectors.copied.widen import batch_of
from connectors.errors import SourceError
from connectors.files.cells import BATCH_ROWS, Sheet, write_cells
from connectors.open import open_source


def workbook(folder: Path, **sheets: list[list[Any]]) -> str:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        made = book.create_sheet(name)
        for row in rows:
            made.append(row)
    book.save(folder / "x.xlsx")
    return str(folder / "x.xlsx")


class Cells:
    """A sheet of the library, that counts those that are there."""

    there = 0
    most = 0
    made = 0  # rows, since they were last looked at

    def __init__(self, count: int) -> None:
        self._count = count
        Cells.there += 1
        Cells.most = max(Cells.most, Cells.there)

    def __del__(self) -> None:
        Cells.there -= 1

    def iter_rows(self) -> Iterator[list[Any]]:
        for number in range(self._count):
            Cells.made += 1
            yield ["text", number]


class Book:
    sheet_names = ("one", "two", "three")

    def __init__(self, *counts: int) -> None:
        self._counts = dict(zip(self.sheet_names, counts, strict=True))

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        """It holds no file."""

    def get_sheet_by_name(self, name: str) -> Cells:
        return Cells(self._counts[name])


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, book: Book) -> int:
    """Rows that are written of the sheet of ``book`` that has some."""
    monkeypatch.setattr("python_calamine.CalamineWorkbook.from_path", lambda path: book, raising=False)
    write_cells(Sheet("copy", "x.xlsx", "x.xlsx", None, str(folder / "cells")))
    with pa.OSFile(str(folder / "cells")) as file, pa.ipc.open_stream(file) as reader:
        return int(reader.read_all().num_rows)


@pytest.fixture(autouse=True)
def none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("there", "most", "made"):
        monkeypatch.setattr(Cells, name, 0)


def test_rows_are_made_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def noted(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        made.append(Cells.made)
        Cells.made = 0
        return batch_of(schema, rows)

    monkeypatch.setattr("connectors.files.cells.batch_of", noted)
    assert written(tmp_path, monkeypatch, Book(0, 5 * BATCH_ROWS + 1, 0)) == 5 * BATCH_ROWS
    assert len(made) == 5
    assert max(made[1:]) <= BATCH_ROWS, "rows are made for each batch, and not for all before the first"
    assert min(made[1:]) == BATCH_ROWS


def test_the_cells_of_one_sheet_at_a_time_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="has the sheets one, three; choose one with --table"):
        written(tmp_path, monkeypatch, Book(9, 0, 9))
    assert Cells.most == 1


@pytest.mark.parametrize("table", [None, "blank"], ids=["the only one", "a chosen one"])
def test_a_sheet_without_cells_has_no_rows(tmp_path: Path, table: str | None) -> None:
    sheets: dict[str, list[list[Any]]] = {"blank": []} if table is None else {"blank": [], "docs": [["id"], [1]]}
    with pytest.raises(SourceError, match="holds no rows; submit at least one row"):
        open_source(workbook(tmp_path, **sheets), table=table)


def test_empty_rows_and_columns_around_the_cells_are_left_out(tmp_path: Path) -> None:
    uri = workbook(tmp_path, docs=[[], [None, "id", "text"], [], [None, 1, "a"], [None, None, "b"]])
    with open_source(uri) as source:
        (group,) = source.row_groups()
        assert source.read(group, 0, 2).to_pylist() == [{"id": 1, "text": "a"}, {"id": None, "text": "b"}]


ENDS = {
    "an abort": ("import os; os.abort()", r"within 4 GiB of memory and 300 s: it has more than about 20 million cells, or one far from"),
    "no memory": ("raise MemoryError", r"within 4 GiB of memory and 300 s"),
    "another error": ("raise RuntimeError('it is broken')", r"cannot be read \(RuntimeError: it is broken\); save its rows as CSV$"),
    "no word": ("import os; os._exit(3)", r"cannot be read \(status 3\); save its rows as CSV$"),
}


@pytest.mark.parametrize(("library", "message"), ENDS.values(), ids=ENDS.keys())
def test_memory_is_blamed_only_for_a_process_that_had_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, message: str
) -> None:
    uri = workbook(tmp_path, docs=[["id"], [1]])
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "python_calamine.py").write_text(library)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    with pytest.raises(SourceError, match=message) as caught:
        open_source(uri)
    assert "\n" not in caught.value.message
