"""The texts of a column, row by row: an invalid cell becomes a `TextProblem`, not an exception. Also text that a column can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connectors.errors import ColumnError
from connectors.value import values


@dataclass(frozen=True, slots=True)
class TextProblem:
    """Why a cell cannot go into a prompt. ``code`` is ``null_text``, ``empty_text`` or ``not_utf8``."""

    code: str
    message: str


NULL_TEXT = TextProblem("null_text", "the text is null")
EMPTY_TEXT = TextProblem("empty_text", "the text is empty or only white space")

# Arrow's text type → the type with the same bytes that is not decoded on reading.
_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
    pa.binary_view(): pa.binary_view(),
}


def is_text(kind: pa.DataType) -> bool:
    """Whether `texts` takes a column of this type: text or bytes, plain, as a dictionary, or under an extension such as JSON."""
    return _plain(kind) in _BYTES


def texts(column: pa.ChunkedArray, name: str | None = None) -> list[str | TextProblem]:
    """One entry for each row: its text as stored, or what is wrong with it.

    Raises `ColumnError` for a column of another type; ``name`` is the column's, for the message.
    """
    if not is_text(column.type):
        which = f"column {name!r}" if name else "the column"
        raise ColumnError(f"{which} is of type {column.type}, not text; choose a text column or cast it")
    # Bytes, not strings: Arrow decodes a whole column at once, and one invalid cell would raise for all of them.
    return [_text(cell) for chunk in column.chunks for cell in _as_bytes(chunk).to_pylist()]


def rows(table: pa.Table) -> list[Mapping[str, Any]]:
    """The rows as Python values. Times that Python has no value for, such as those with nanoseconds, are ISO text.

    A cell whose text is not UTF-8 is a `TextProblem`.
    """
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else [{}] * table.num_rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return values(column)
    except UnicodeDecodeError:  # one invalid cell raises for the whole column
        return [_value(column.slice(at, 1)) for at in range(len(column))]


def _value(cell: pa.ChunkedArray) -> Any:
    try:
        return values(cell)[0]
    except UnicodeDecodeError as error:
        return _not_utf8(error)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _as_bytes(chunk: pa.Array) -> pa.Array:
    if isinstance(chunk.type, pa.BaseExtensionType):
        return _as_bytes(chunk.storage)
    if pa.types.is_dictionary(chunk.type):
        return _as_bytes(chunk.dictionary_decode())
    return chunk.cast(_BYTES[chunk.type])


def _text(cell: bytes | None) -> str | TextProblem:
    if cell is None:
        return NULL_TEXT
    try:
        text = cell.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_utf8(error)
    return text if text.strip() else EMPTY_TEXT


def _not_utf8(error: UnicodeDecodeError) -> TextProblem:
    return TextProblem("not_utf8", f"the text is not valid UTF-8: byte {error.object[error.start]:#04x} at position {error.start}")


def repaired(array: pa.Array) -> pa.Array:
    """The array with each text in it, at any depth, valid UTF-8: other bytes become U+FFFD. Everything else stays as it is."""
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        pass
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(repaired(array.storage))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, repaired(array.dictionary), ordered=kind.ordered)
    if pa.types.is_struct(kind):
        inner = [repaired(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=array.is_null())
    if kind.num_fields:  # a list or a map, whose offsets count from the first of all its values
        own = array.buffers()[: kind.num_buffers]
        return pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=[repaired(array.values)])
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return array
    cells: list[bytes | None] = array.cast(_BYTES[kind]).to_pylist()
    return pa.array([None if cell is None else cell.decode("utf-8", "replace") for cell in cells], kind)


def storable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair, which JSON escapes can spell, becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
