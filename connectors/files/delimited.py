"""CSV and its kin: a header, then rows; columns are numbers where every cell is one, text otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from pyarrow import fs

from connectors.base import check_unique
from connectors.copied.source import Rows
from connectors.edge import first_line, reading, shown
from connectors.errors import SourceError
from connectors.files.stream import opened
from connectors.paths.files import DataFile

MAX_ROW_BYTES = 16 << 20  # a block: Arrow reads no row that is longer
_HEAD_BYTES = 1 << 16
_DELIMITERS = (",", ";", "\t", "|")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

# Narrowest first. Without leading zeros: "007" is a name, not the number seven. 18 digits always fit 64 bits.
_PATTERNS: dict[pa.DataType, str] = {
    pa.bool_(): r"^(true|false|True|False|TRUE|FALSE)?$",
    pa.int64(): r"^(-?(0|[1-9][0-9]{0,17}))?$",
    pa.float64(): r"^(-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?)?$",
}


@dataclass(frozen=True, slots=True)
class _Form:
    delimiter: str
    encoding: str


def csv_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...]) -> Rows:
    """All files must have one header. Reads everything twice: the first pass finds the types.

    Text is taken as it is stored, also where it is not UTF-8. Raises `SourceError` naming the row with too many or too few cells.
    """
    names = _names(files, data_files[0])
    for other in data_files[1:]:
        if (found := _names(files, other)) != names:
            odd = next((one for one in (*names, *found) if (one in names) != (one in found)), "their order")
            raise SourceError(
                f"{shown(other.path)} and {shown(data_files[0].path)} differ in their header ({odd}); submit them as separate jobs"
            )
    types = _types(names, _raw(files, data_files, names))
    schema = pa.schema(list(zip(names, types, strict=True)))
    return schema, (_typed(batch, schema) for batch in _raw(files, data_files, names))


def _names(files: fs.FileSystem, data_file: DataFile) -> list[str]:
    with _parsing(data_file), _stream(files, data_file) as stream:
        raw = [str(name) for name in pcsv.open_csv(stream, **_options(_form(files, data_file), on_bad=lambda row: "skip")).schema.names]
    names = [name.strip() or f"column_{number}" for number, name in enumerate(raw, 1)]
    check_unique(names, f"the header of {shown(data_file.path)}")
    return names


def _form(files: fs.FileSystem, data_file: DataFile) -> _Form:
    with reading(data_file.path, "CSV"), _stream(files, data_file) as stream:
        head = bytes(stream.read(_HEAD_BYTES))
    encoding = "utf-16" if head.startswith(_UTF16) else "utf8"
    line = head.decode(encoding, "replace").lstrip("\ufeff").lstrip("\r\n")
    line = re.split(r"[\r\n]", _QUOTED.sub("", line), maxsplit=1)[0]
    if "\0" in line or "\ufffd" in line:
        raise SourceError(f"{shown(data_file.path)} is not CSV: its first line holds binary data; give a text file with a header")
    if data_file.path.lower().removesuffix(".gz").endswith((".tsv", ".tab")):
        return _Form("\t", encoding)
    return _Form(max(_DELIMITERS, key=line.count), encoding)


def _options(form: _Form, names: list[str] | None = None, on_bad: Callable[[Any], str] | None = None) -> dict[str, Any]:
    typed = {} if names is None else {"column_types": dict.fromkeys(names, pa.binary())}
    return {
        # One thread, for only then does Arrow know the number of a bad row.
        "read_options": pcsv.ReadOptions(
            block_size=MAX_ROW_BYTES, use_threads=False, encoding=form.encoding, column_names=names, skip_rows_after_names=1 if names else 0
        ),
        "parse_options": pcsv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True, invalid_row_handler=on_bad),
        "convert_options": pcsv.ConvertOptions(strings_can_be_null=False, null_values=[], check_utf8=False, **typed),
    }


def _stream(files: fs.FileSystem, data_file: DataFile) -> Any:
    return opened(files, data_file)


def _raw(files: fs.FileSystem, data_files: tuple[DataFile, ...], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Every cell as bytes."""
    for data_file in data_files:
        form = _form(files, data_file)
        bad: list[Any] = []

        def note(row: Any, bad: list[Any] = bad) -> str:
            bad.append(row)
            return "error"

        with _parsing(data_file, bad):
            stream = _stream(files, data_file)
            reader = pcsv.open_csv(stream, **_options(form, names, note))
        with stream:
            while True:
                with _parsing(data_file, bad):
                    batch = next(reader, None)
                if batch is None:
                    break
                yield batch


@contextmanager
def _parsing(data_file: DataFile, bad: list[Any] | None = None) -> Iterator[None]:
    where = shown(data_file.path)
    try:
        with reading(data_file.path, "CSV"):
            try:
                yield
            except pa.ArrowInvalid as error:
                raise SourceError(_told(where, error, bad or [])) from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{where} is not CSV: its header is not UTF-8; give a text file with a header") from error


def _told(where: str, error: pa.ArrowInvalid, bad: list[Any]) -> str:
    if bad:
        row = bad[0]
        # Arrow counts from the first line that it parses as cells, the header.
        if not row.text.isprintable():
            return f"{where} row {row.number} (the header is row 1) holds binary data; give a text file with a header"
        return (
            f"{where} row {row.number} (the header is row 1) has {row.actual_columns} cells, the header {row.expected_columns}: "
            f"{row.text[:60]!r}; fix the row, or quote the cell that holds the delimiter"
        )
    if "straddling" in str(error):
        return f"{where} has a row of more than {MAX_ROW_BYTES >> 20} MiB; is a quote left open?"
    if "Empty CSV" in str(error):
        return f"{where} is empty; give a file with a header and at least one row"
    return f"{where} is not CSV, or is damaged: {first_line(error)}; give a text file with a header"


def _types(names: list[str], batches: Iterator[pa.RecordBatch]) -> list[pa.DataType]:
    possible = [dict(_PATTERNS) for _ in names]
    filled = [False] * len(names)
    for batch in batches:
        for index, column in enumerate(batch.columns):
            possible[index] = {kind: pattern for kind, pattern in possible[index].items() if _all(column, pattern)}
            filled[index] = filled[index] or bool(pc.any(pc.greater(pc.binary_length(column), 0)).as_py())
    return [next(iter(kinds), pa.string()) if some else pa.string() for kinds, some in zip(possible, filled, strict=True)]


def _all(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py())


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([_cells(column, field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema)


def _cells(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return column.view(pa.string())
    empty = pc.equal(pc.binary_length(column), 0)
    text = pc.if_else(empty, pa.scalar(None, pa.string()), column.view(pa.string()))
    return pc.utf8_lower(text).cast(kind)
