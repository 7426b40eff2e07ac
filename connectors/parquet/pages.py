"""Size in memory of a row group's pages, read from their headers: a footer may claim less, and Arrow trusts the header.

Reads `PageHeader` of Parquet's Thrift definition, in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from connectors.errors import SourceError

MAX_PAGE_BYTES = 256 << 20  # decompressed
MAX_NESTED_VALUES = 1 << 26  # of lists, in one row group, beyond those that its bytes pay for: equal values take nearly none
PAID_VALUES = 2  # of lists, per stored byte: vectors of 8-bit integers pass, and a row's list takes memory in proportion to its file
_HEADER_BYTES = 1 << 13  # read first; statistics may hold long text, then more is read
_MAX_HEADER_BYTES = 1 << 24
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # types of a page
_COUNTED = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # the field of `PageHeader` whose first field counts a page's values


class _Short(Exception):
    """The header is longer than what was read."""


@dataclass(frozen=True, slots=True)
class Page:
    header_bytes: int
    compressed_bytes: int
    bytes: int
    values: int
    is_dictionary: bool


def largest_page(stream: Any, parquet: pq.ParquetFile, group: int, columns: set[str], where: str) -> int:
    """Bytes of the largest page of ``columns`` (top-level names), read from headers alone. ``stream``: the file, seekable.

    As in Arrow, a column ``a`` stands for every path that begins with ``a.`` too.

    Raises `SourceError` for pages and lists that would not fit into memory, and for headers that cannot be read.
    """
    largest = 0
    about = parquet.metadata.row_group(group)
    for index in range(about.num_columns):
        chunk = about.column(index)
        if columns.isdisjoint(_prefixes(chunk.path_in_schema)):
            continue
        values = 0
        for page in _pages(stream, chunk, where):
            largest = max(largest, page.bytes)
            values += 0 if page.is_dictionary else max(0, page.values - PAID_VALUES * page.compressed_bytes)
            _check(page, values, parquet.schema.column(index), chunk.path_in_schema, where)
    return largest


def _prefixes(path: str) -> list[str]:
    """A name may hold dots itself, which a path does not tell from those between its names."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _check(page: Page, values: int, column: Any, name: str, where: str) -> None:
    if page.bytes > MAX_PAGE_BYTES:
        raise SourceError(
            f"{where}: a page of column {name!r} takes {page.bytes:,} bytes once it is decompressed; the limit is {MAX_PAGE_BYTES:,}: "
            "write the file with smaller pages"
        )
    if column.max_repetition_level > 0 and values > MAX_NESTED_VALUES:
        raise SourceError(
            f"{where}: the lists of column {name!r} hold more than {MAX_NESTED_VALUES:,} values in one row group, most of them equal; "
            "write smaller row groups, or leave this column out of the job"
        )


def _pages(stream: Any, chunk: Any, where: str) -> Iterator[Page]:
    starts = [offset for offset in (chunk.dictionary_page_offset, chunk.data_page_offset) if offset]
    at = min(starts)
    end = at + chunk.total_compressed_size
    seen = 0
    while at < end and seen < chunk.num_values:
        page = _page(stream, at, where)
        yield page
        seen += 0 if page.is_dictionary else page.values
        at += page.header_bytes + page.compressed_bytes


def _page(stream: Any, at: int, where: str) -> Page:
    ask_bytes = _HEADER_BYTES
    while True:
        stream.seek(at)
        raw = bytes(stream.read(ask_bytes))
        try:
            fields, used = _structure(raw, 0)
            numbers = {field: fields.get(field, -1) for field in (2, 3)}
            kind = fields.get(1)
            inner = fields.get(_COUNTED[kind], {}) if kind in _COUNTED else {1: 0}
            page = Page(used, numbers[3], numbers[2], inner.get(1, -1), kind == _DICTIONARY)
            if min(page.compressed_bytes, page.bytes, page.values) < 0:
                raise ValueError("a size is missing or negative")
            return page
        except _Short:
            if len(raw) < ask_bytes or ask_bytes >= _MAX_HEADER_BYTES:
                raise _damaged(where, at, "it does not end") from None
            ask_bytes *= 16
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise _damaged(where, at, str(error)) from error


def _damaged(where: str, at: int, why: str) -> SourceError:
    return SourceError(f"{where} is not Parquet, or is damaged: the page header at byte {at} cannot be read ({why}); write it again")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw):
            raise _Short
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _structure(raw: bytes, at: int) -> tuple[dict[int, Any], int]:
    """32-bit integers and structures by field number, and where the structure ends.

    `PageHeader` has no other fields that count. Where one comes as another kind, Thrift skips it, and keeps the value read before.
    """
    fields: dict[int, Any] = {}
    number = 0
    while True:
        if at >= len(raw):
            raise _Short
        head = raw[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            coded, at = _varint(raw, at)
            number = (coded >> 1) ^ -(coded & 1)
        value, at = _value(raw, at, head & 15)
        if value is not None:
            fields[number] = value


def _value(raw: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:  # a boolean is its kind
            return None, at
        case 3:
            return None, at + 1
        case 5:
            coded, at = _varint(raw, at)
            return (coded >> 1) ^ -(coded & 1), at
        case 4 | 6:
            return None, _varint(raw, at)[1]
        case 7:
            return None, at + 8
        case 8:
            length, at = _varint(raw, at)
            return None, at + length
        case 12:
            return _structure(raw, at)
        case _:
            raise ValueError(f"a field is of kind {kind}, which page headers do not have")
