"""Rows as aligned text or as a Markdown table, and text of others as a terminal may show it."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:  # a list of jobs does not need it
    import pyarrow as pa

MAX_CELL = 60  # columns on the screen that one value may take
MIN_CELL = 8  # below that a column is left out
GAP = 2
# C0, DEL and C1: a terminal obeys them. The last two may stand in JSON as they are, so they become what JSON reads back.
_CONTROLS = {code: f"\\x{code:02x}" for code in range(0x20)} | {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
_LINES = {code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"}


def visible(text: str, *, is_one_line: bool = True) -> str:
    """``text`` with its control characters written out (``\\x1b``), so that no terminal obeys them.

    ``is_one_line``: line feeds and tabs too.
    """
    return text.translate(_CONTROLS if is_one_line else _LINES)


class Screen(io.RawIOBase):
    """Writes UTF-8 to a terminal, with control characters made `visible` except line feeds and tabs."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._out.write(visible(self._decoder.decode(bytes(data)), is_one_line=False).encode())
        return len(data)


def screen_columns() -> int | None:
    """Width of the terminal in columns; None if the output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def render(names: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = (), screen: int | None = None) -> Iterator[str]:
    """Aligned columns, one line a row; ``right`` holds the columns aligned to the right.

    Where they do not fit ``screen`` columns, the widest become narrower; then the last are left out, and a line says which.
    """
    to_right = set(right)
    names, rows = [visible(name) for name in names], [[visible(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    kept = widths if screen is None else fitted(widths, screen)
    for row in (names, ["─" * width for width in kept], *rows):
        padded = [_pad(clip(value, width), width, index in to_right) for index, (value, width) in enumerate(zip(row, kept, strict=False))]
        yield "  ".join(padded).rstrip() + "\n"
    if len(kept) < len(names):
        yield f"... {len(names) - len(kept)} more columns: {', '.join(names[len(kept) :])}\n"


def fitted(widths: Sequence[int], screen: int) -> list[int]:
    """Widths of the first columns, as many and as wide as fit on ``screen``; at least one."""
    kept = list(widths)
    while len(kept) > 1 and sum(min(width, MIN_CELL) for width in kept) + GAP * (len(kept) - 1) > screen:
        kept.pop()
    room = max(screen - GAP * (len(kept) - 1), 1)
    while (over := sum(kept) - room) > 0:
        widest = max(kept)
        others = max((width for width in kept if width < widest), default=0)
        count = kept.count(widest)
        step = max(1, min(widest - others, -(-over // count)))
        left = over
        for index, width in enumerate(kept):
            if width == widest and left > 0:
                cut = min(step, left)
                kept[index] -= cut
                left -= cut
    return kept


def text_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], screen: int | None = None) -> Iterator[str]:
    """Long values are cut. Holds all rows, to find the widths. ``screen``: see `render`."""
    rows = [[clip(" ".join(cell(value).split()), MAX_CELL) for value in row] for row in _rows(batches)]
    return render(schema.names, rows, [index for index, field in enumerate(schema) if _is_number(field.type)], screen)


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
            return repr(value).removesuffix(".0")  # the fewest digits that read back as the same number
        case datetime():
            return value.isoformat(" ", "seconds")
        case _:
            from connectors.value import text

            return text(value)


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = (value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>") for value in cells)
    return f"| {' | '.join(escaped)} |\n"


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    from connectors.value import values

    for batch in batches:
        yield from zip(*(values(column) for column in batch.columns), strict=True)


def _pad(value: str, width: int, to_right: bool) -> str:
    return " " * (width - cell_len(value)) + value if to_right else set_cell_size(value, width)


def clip(value: str, columns: int) -> str:
    """`visible`, and cut to ``columns`` on the screen."""
    value = visible(value)
    return value if cell_len(value) <= columns else set_cell_size(value, columns - 1).rstrip() + "…"


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
