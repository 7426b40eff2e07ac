"""CSV, TSV and the like: a header, then rows. A column is boolean or a number if every cell is one, else text.

A prompt writes numbers out, so a number type must give the cells back as they stood. ``12.50`` becomes a decimal. Columns with ``3.9``
and ``3.10`` (versions) or ``1E5`` (product codes) stay text; so do those with ``0.00001`` beside ``0.5``: a double is shown as 1e-05.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from connectors.base import check_unique, check_width
from connectors.copied.source import Rows
from connectors.copied.widen import unchecked_text
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.files.encoding import HEAD_BYTES, UTF8, Utf8Evidence, encoding_of, undecodable
from connectors.files.form import TextForm
from connectors.files.stream import opened
from connectors.paths.files import DataFile
from connectors.paths.names import uncompressed

MAX_ROW_CHARS = 16 << 20  # on all lines of the row
MAX_DECIMAL_DIGITS = 18  # of numbers that all have as many digits after the point; such a decimal fits 64 bits
BATCH_ROWS = 4096
BATCH_CHARS = 8 << 20  # with delimiters, since empty cells take memory too
_DELIMITERS = (",", ";", "\t", "|")
_TOLD = re.compile(r"""\ufeff?"?sep=([^\w"' ])"?""", re.IGNORECASE)  # a first line that gives the delimiter, as Excel writes and reads it
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

# Narrowest first. Without leading zeros: "007" is a name, not the number seven. 18 digits always fit 64 bits.
_PATTERNS: dict[pa.DataType, str] = {
    pa.bool_(): r"^(true|false|True|False|TRUE|FALSE)?$",
    pa.int64(): r"^(-?(0|[1-9][0-9]{0,17}))?$",
    pa.float64(): r"^(-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,20})?(e[+-][0-9]{2,3})?)?$",
}
# Cells of a column of doubles that need no further look: whole numbers, which a prompt shows with .0, and fractions of up to 15 digits,
# which every double gives back. The others are numbers only where Python writes the double as they stand: 1e-05, 0.30000000000000004.
_FRACTIONS = [rf"[1-9][0-9]{{{digits - 1}}}\.[0-9]{{0,{14 - digits}}}[1-9]" for digits in range(1, 15)]
_SURE = rf"^(-?((0|[1-9][0-9]{{0,14}})(\.0)?|0\.0{{0,3}}([1-9][0-9]{{0,13}})?[1-9]|{'|'.join(_FRACTIONS)}))?$"
_FIXED = re.compile(r"-?([0-9]+)\.([0-9]+)")


def _fixed(cell: str) -> dict[pa.DataType, str]:
    """The decimal type that holds ``cell`` with its last zeros, with the pattern of a column of such cells; empty where there is none."""
    found = _FIXED.fullmatch(cell)
    if found is None or len(cell) > MAX_DECIMAL_DIGITS:
        return {}
    scale = len(found[2])
    whole = MAX_DECIMAL_DIGITS - scale
    return {pa.decimal128(MAX_DECIMAL_DIGITS, scale): rf"^(-?(0|[1-9][0-9]{{0,{whole - 1}}})\.[0-9]{{{scale}}})?$"}


@dataclass(frozen=True, slots=True)
class _Dialect:
    """``is_told``: a line before the header gives the delimiter."""

    delimiter: str
    encoding: str
    is_told: bool = False


def csv_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Rows:
    """All files must have the same header. Reads everything twice: the first pass finds types and errors.

    Cells are strict RFC 4180: an open quote, or text after a closing one, is refused. In a file taken for UTF-8 a few invalid cells are
    kept as stored; without any valid one beyond ASCII the file is in another encoding and refused (`Utf8Evidence`). Raises `SourceError`
    naming the line.
    """
    dialects = [_dialect(files, data_file, form) for data_file in data_files]
    names, types = _described(files, data_files, dialects, form)
    schema = pa.schema(list(zip(names, types, strict=True)))
    return schema, _typed(files, data_files, dialects, schema)


def _dialect(files: fs.FileSystem, data_file: DataFile, form: TextForm) -> _Dialect:
    with reading(data_file.path, "CSV"), opened(files, data_file) as stream:
        head = bytes(stream.read(HEAD_BYTES))
    encoding = encoding_of(head, form.encoding)
    line = head.decode(encoding, "replace").lstrip("\ufeff").lstrip("\r\n")
    told = _TOLD.fullmatch(re.split(r"[\r\n]", line, maxsplit=1)[0])
    if told:
        return _Dialect(told[1], encoding, is_told=True)
    line = re.split(r"[\r\n]", _QUOTED.sub("", line), maxsplit=1)[0]
    if "\0" in line or ("\ufffd" in line and (b"\0" in head if encoding in UTF8 else form.encoding is None)):
        raise SourceError(f"{shown(data_file.path)} is not CSV: its first line holds binary data; give a text file with a header")
    if uncompressed(data_file.relative).lower().endswith((".tsv", ".tab")):
        return _Dialect("\t", encoding)
    return _Dialect(max(_DELIMITERS, key=line.count), encoding)


def _lines(files: fs.FileSystem, data_file: DataFile, dialect: _Dialect) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, the header too, each with the number of the line that it begins on."""
    where = shown(data_file.path)
    csv.field_size_limit(MAX_ROW_CHARS)
    with reading(data_file.path, "CSV"):
        stream = BufferedReader(opened(files, data_file), 1 << 20)
    # In UTF-8 an invalid cell is an error of its row; in another encoding the start of the next cell would be unknown.
    errors = "surrogateescape" if dialect.encoding in UTF8 else "strict"
    with stream, TextIOWrapper(stream, encoding=dialect.encoding, errors=errors, newline="") as text:
        lines = _Bounded(text, where)
        reader = csv.reader(lines, delimiter=dialect.delimiter, strict=True)
        is_told = dialect.is_told
        while True:
            start = reader.line_num + 1
            lines.begin_row(start)
            with _parsing(data_file, where, start, dialect):
                row = next(reader, None)
            if row is None:
                return
            check_width(len(row), f"{where} line {start}")
            if row and not is_told:
                yield start, row
            is_told = is_told and not row


class _Bounded:
    """The lines of ``text``. Raises `SourceError` where those of one row, which quotes join, are longer than a row may be."""

    def __init__(self, text: TextIOWrapper, where: str) -> None:
        self._text = text
        self._where = where
        self.begin_row(1)

    def begin_row(self, line: int) -> None:
        self._row_line, self._row_chars = line, 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(MAX_ROW_CHARS + 1):
            self._row_chars += len(line)
            if self._row_chars > MAX_ROW_CHARS:
                told = f"{self._where} line {self._row_line} is longer than {MAX_ROW_CHARS >> 20} MiB"
                raise SourceError(f"{told}; close a quote that is left open, or cut the row into several")
            yield line


@contextmanager
def _parsing(data_file: DataFile, where: str, line: int, dialect: _Dialect) -> Iterator[None]:
    with reading(data_file.path, "CSV"):
        try:
            yield
        except UnicodeError as error:
            raise undecodable(f"{where} behind line {line - 1}", error, dialect.encoding) from error
        except csv.Error as error:
            raise SourceError(f"{where} line {line} is not CSV: {_fault(error)}") from error


def _fault(error: csv.Error) -> str:
    told = str(error)
    if "unexpected end of data" in told:
        return "a quote is left open; close it, or double a quote within a cell"
    if "expected after" in told:
        return "text follows a closing quote; double a quote within a cell"
    return f"{told}; fix the line"


def _header(data_file: DataFile, row: list[str]) -> list[str]:
    names = [name.strip() or f"column_{number}" for number, name in enumerate(row, 1)]
    where = f"the header of {shown(data_file.path)}"
    for name in names:
        if not name.isprintable() and any(0xDC80 <= ord(letter) <= 0xDCFF for letter in name):
            raise SourceError(f"{where} is not UTF-8; name the file's encoding, such as --encoding latin-1, or write it as UTF-8")
    check_unique(names, where)
    return names


def _described(
    files: fs.FileSystem, data_files: Sequence[DataFile], dialects: Sequence[_Dialect], form: TextForm
) -> tuple[list[str], list[pa.DataType]]:
    """Column names and types. Every error that makes a file invalid CSV is found here."""
    names: list[str] = []
    kinds = _Kinds()
    for data_file, dialect in zip(data_files, dialects, strict=True):
        evidence = Utf8Evidence()
        rows = _lines(files, data_file, dialect)
        first = next(rows, None)
        if first is None:
            raise SourceError(f"{shown(data_file.path)} is empty; give a file with a header and at least one row")
        names = _same_header(names, _header(data_file, first[1]), data_file, data_files[0])
        header_cells = len(first[1])
        for batch in _batched(rows):
            for line, row in batch:
                if len(row) != header_cells and not form.ragged:
                    raise SourceError(_ragged(shown(data_file.path), line, row, header_cells))
                if dialect.encoding in UTF8 and form.encoding is None and not all(map(str.isascii, row)):
                    evidence.see(f"{shown(data_file.path)} line {line}", "\n".join(row).encode("utf-8", "surrogateescape"))
            kinds.see([row for _, row in batch])
        evidence.check()
    extra = [f"column_{number}" for number in range(len(names) + 1, kinds.width + 1)]
    check_unique([*names, *extra], shown(data_files[0].path))
    return [*names, *extra], kinds.types(len(names) + len(extra))


def _same_header(names: list[str], found: list[str], data_file: DataFile, first: DataFile) -> list[str]:
    if names and found != names:
        odd = next((one for one in (*names, *found) if (one in names) != (one in found)), "their order")
        raise SourceError(f"{shown(data_file.path)} and {shown(first.path)} differ in their header ({odd}); submit them as separate jobs")
    return found


def _ragged(where: str, line: int, row: list[str], expected: int) -> str:
    told = ",".join(row)[:60].encode("utf-8", "replace").decode()
    return (
        f"{where} line {line} has {len(row)} cells, the header {expected}: {told!r}; "
        "quote the cell that holds the delimiter, or read short and long rows as they are with --ragged"
    )


class _Kinds:
    """Which types each column may still have, and how many columns there are."""

    def __init__(self) -> None:
        self.width = 0
        self._possible: list[dict[pa.DataType, str]] = []
        self._filled: list[bool] = []

    def see(self, rows: Sequence[Sequence[str]]) -> None:
        self.width = max([self.width, *map(len, rows)])
        while len(self._possible) < self.width:
            self._possible.append(dict(_PATTERNS))
            self._filled.append(False)
        for index in range(self.width if rows else 0):
            column = _cells(rows, index)
            if not self._filled[index]:
                self._possible[index] |= _fixed(next((row[index] for row in rows if index < len(row) and row[index]), ""))
            if self._possible[index]:
                self._possible[index] = {kind: how for kind, how in self._possible[index].items() if _fits(column, kind, how)}
            self._filled[index] = self._filled[index] or bool(pc.any(pc.greater(pc.binary_length(column), 0)).as_py())

    def types(self, width: int) -> list[pa.DataType]:
        known = list(zip(self._possible, self._filled, strict=True)) + [({}, False)] * width
        return [next(iter(kinds), pa.string()) if filled else pa.string() for kinds, filled in known[:width]]


def _fits(column: pa.Array, kind: pa.DataType, pattern: str) -> bool:
    if not pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py():
        return False
    if kind != pa.float64():
        return True
    unsure = column.filter(pc.invert(pc.match_substring_regex(column, _SURE)))
    return all(repr(float(cell)) == cell for cell in unsure.to_pylist())


def _cells(rows: Sequence[Sequence[str]], index: int) -> pa.Array:
    """A column as stored; a cell that a ragged row lacks is null."""
    return unchecked_text([row[index].encode("utf-8", "surrogateescape") if index < len(row) else None for row in rows])


def _typed(
    files: fs.FileSystem, data_files: Sequence[DataFile], dialects: Sequence[_Dialect], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for data_file, dialect in zip(data_files, dialects, strict=True):
        rows = _lines(files, data_file, dialect)
        next(rows, None)
        for batch in _batched(rows):
            yield _batch([row for _, row in batch], schema)


def _batched(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    held: list[tuple[int, list[str]]] = []
    held_chars = 0
    for line, row in rows:
        held.append((line, row))
        held_chars += len(row) + sum(map(len, row))
        if len(held) >= BATCH_ROWS or held_chars >= BATCH_CHARS:
            yield held
            held, held_chars = [], 0
    if held:
        yield held


def _batch(rows: Sequence[Sequence[str]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([_as(_cells(rows, index), field.type) for index, field in enumerate(schema)], schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return column
    empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), True)
    return pc.utf8_lower(pc.if_else(empty, pa.scalar(None, pa.string()), column)).cast(kind)
