"""Rows as aligned text or as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from connectors.value import text

MAX_CELL = 60  # columns on the screen that one value may take


def render(names: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> Iterator[str]:
    """Aligned columns, one line a row; ``right`` holds the columns aligned to the right."""
    to_right = set(right)
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, ["─" * width for width in widths], *rows):
        padded = [_pad(value, width, index in to_right) for index, (value, width) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(padded).rstrip() + "\n"


def text_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Long values are cut. Holds all rows, to find the widths."""
    rows = [[_clip(" ".join(cell(value).split())) for value in row] for row in _rows(batches)]
    return render(schema.names, rows, [index for index, field in enumerate(schema) if _is_number(field.type)])


def markdown_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    yield _markdown_line(schema.names)
    yield _markdown_line(["---:" if _is_number(field.type) else "---" for field in schema])
    for row in _rows(batches):
        yield _markdown_line([cell(value) for value in row])


def cell(value: object) -> str:
    """One value, as a person reads it."""
    match value:
        case None:
            return ""
        case str():
            return value
        case float():
            return f"{value:.6g}"
        case datetime():
            return value.isoformat(" ", "seconds")
        case _:
            return text(value)


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = (value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>") for value in cells)
    return f"| {' | '.join(escaped)} |\n"


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _pad(value: str, width: int, to_right: bool) -> str:
    return " " * (width - cell_len(value)) + value if to_right else set_cell_size(value, width)


def _clip(value: str) -> str:
    return value if cell_len(value) <= MAX_CELL else set_cell_size(value, MAX_CELL - 1).rstrip() + "…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
