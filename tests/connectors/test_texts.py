"""Cells that are no text are marked one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.text import TextProblem, texts
from harvester.errors import ColumnError

CELLS = [b"hello", b"\xff\xfe", None, b"", b" \n\t ", "žluťoučký".encode(), b"ok \xc3", b"\xed\xa0\x80"]
WANTED = ["hello", "not_utf8", "null_text", "empty_text", "empty_text", "žluťoučký", "not_utf8", "not_utf8"]
CODES = {"not_utf8", "null_text", "empty_text"}


def unchecked(kind: pa.DataType) -> pa.Array:
    """The cells as a text array, past Arrow's own check."""
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    array = pa.array(CELLS, binary.get(kind, kind))
    return array.view(kind) if array.type != kind else array


def dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int16()), values)


ARRAYS: dict[str, Any] = {
    str(kind): unchecked(kind)
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
}
ARRAYS["dictionary of string"] = dictionary(ARRAYS["string"])
ARRAYS["dictionary of large_string"] = dictionary(ARRAYS["large_string"])
ARRAYS["json"] = pa.ExtensionArray.from_storage(pa.json_(), ARRAYS["string"])


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
@pytest.mark.parametrize("chunks", [1, 3], ids=["one chunk", "three chunks"])
def test_every_cell_is_its_text_or_its_own_problem(array: pa.Array, chunks: int) -> None:
    column = pa.chunked_array([array.slice(start, -(-len(array) // chunks)) for start in range(0, len(array), -(-len(array) // chunks))])
    found = texts(column)
    assert [cell.code if isinstance(cell, TextProblem) else cell for cell in found] == WANTED
    assert {cell.code for cell in found if isinstance(cell, TextProblem)} == CODES


def test_a_bad_byte_is_named_with_its_place() -> None:
    (problem,) = texts(pa.chunked_array([pa.array([b"ab\xff"])]))
    assert problem == TextProblem("not_utf8", "the text is not valid UTF-8: byte 0xff at position 2")


def test_no_rows_give_no_texts() -> None:
    assert texts(pa.chunked_array([], pa.string())) == []


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.int64()), pa.null(), pa.uuid()], ids=str)
def test_a_column_of_another_type_is_refused_with_its_name_and_type(kind: pa.DataType) -> None:
    with pytest.raises(ColumnError, match=r"column 'body' is of type .*, not text; choose a text column or cast it"):
        texts(pa.chunked_array([], kind), "body")
