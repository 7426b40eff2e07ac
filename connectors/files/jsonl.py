"""JSON: one object a line, one array of objects, or objects over several lines; each column has the narrowest type for its values."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import fs

from connectors.copied.source import Rows
from connectors.copied.widen import Columns, batch_of
from connectors.edge import first_line, reading, shown
from connectors.errors import SourceError
from connectors.files.encoding import HEAD_BYTES, UTF8, advice, encoding_of, undecodable
from connectors.files.form import TextForm
from connectors.files.stream import opened
from connectors.paths.files import DataFile

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20  # of lines
MAX_LINE_BYTES = 16 << 20  # an object takes up to 30 times its bytes once it is read
MAX_OBJECT_BYTES = MAX_LINE_BYTES  # of one object of an array
TAIL_BYTES = 1 << 16  # searched for the end of an array; white space alone may follow it


def jsonl_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Rows:
    """Columns of all files in the order they first occur; a missing key is null. Objects and lists become JSON text.

    Reads everything twice: the first pass finds the columns. Raises `SourceError` naming the line or item that is no JSON object, that
    names a key twice, or that holds a number which a double cannot hold.
    """
    columns = Columns(shown(data_files[0].path))
    for row, _ in _objects(files, data_files, form):
        columns.see(row)
    schema = columns.schema
    return schema, _batches(schema, _objects(files, data_files, form))


def _batches(schema: pa.Schema, rows: Iterator[tuple[dict[str, Any], int]]) -> Iterator[pa.RecordBatch]:
    held: list[dict[str, Any]] = []
    held_bytes = 0
    for row, line_bytes in rows:
        held.append(row)
        held_bytes += line_bytes
        if len(held) >= BATCH_ROWS or held_bytes >= BATCH_BYTES:
            yield batch_of(schema, held)
            held, held_bytes = [], 0
    if held:
        yield batch_of(schema, held)


def _objects(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Iterator[tuple[dict[str, Any], int]]:
    for data_file in data_files:
        where = shown(data_file.path)
        encoding, layout = _told(files, data_file, form)
        if layout is not None:
            for number, item in _items(files, data_file, encoding, layout):
                yield _object(item, f"{where} item {number}"), len(item)
            continue
        for number, line in _lines(files, data_file, encoding):
            if line.strip():
                yield _object(line, f"{where} line {number}"), len(line)


def _told(files: fs.FileSystem, data_file: DataFile, form: TextForm) -> tuple[str, str | None]:
    """The encoding, and DuckDB's name of the layout; None for one object a line."""
    with reading(data_file.path, "JSON lines"), opened(files, data_file) as stream:
        head = bytes(stream.read(HEAD_BYTES))
    encoding = encoding_of(head, form.encoding)
    text = head.decode(encoding, "replace").lstrip("\ufeff \t\r\n")
    first, ends, _ = text.partition("\n")
    if text.startswith("["):
        return encoding, "array"
    if ends and first.startswith("{") and first.rstrip() in ("{", "{ "):  # an object written over several lines
        return encoding, "unstructured"
    return encoding, None


def _lines(files: fs.FileSystem, data_file: DataFile, encoding: str) -> Iterator[tuple[int, bytes]]:
    """Each line in UTF-8 with its number, counted from 1."""
    with reading(data_file.path, "JSON lines"), BufferedReader(opened(files, data_file), 1 << 20) as stream:
        if encoding in UTF8:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), 1):
                _check_length(line, data_file, number)
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            return
        with _decoding(data_file, encoding):
            text = TextIOWrapper(stream, encoding=encoding, newline="\n")
            for number, part in enumerate(iter(lambda: text.readline(MAX_LINE_BYTES + 1), ""), 1):
                line = part.encode("utf-8", "surrogatepass")
                _check_length(line, data_file, number)
                yield number, line


def _check_length(line: bytes, data_file: DataFile, number: int) -> None:
    if len(line) > MAX_LINE_BYTES:
        where = f"{shown(data_file.path)} line {number}"
        raise SourceError(f"{where} is longer than {MAX_LINE_BYTES >> 20} MiB; cut it into rows, or leave it out")


def _items(files: fs.FileSystem, data_file: DataFile, encoding: str, layout: str) -> Iterator[tuple[int, bytes]]:
    """Each object as written, split by DuckDB's reader from an uncompressed local copy in UTF-8."""
    where = shown(data_file.path)
    with tempfile.TemporaryDirectory(prefix="harvester-json-") as scratch:
        copy = Path(scratch, "copy.json")
        _decoded(files, data_file, encoding, copy)
        with duckdb.connect(config={"threads": 1, "python_enable_replacements": "false"}) as connection:
            connection.execute("set allowed_directories = $1", [[f"{scratch}/"]])
            connection.execute("set enable_external_access = false")
            sql = f"select * from read_json_objects($1, format = '{layout}', maximum_object_size = {MAX_OBJECT_BYTES})"
            number = 0
            try:
                for batch in connection.sql(sql, params=[str(copy)]).to_arrow_reader(BATCH_ROWS):
                    for item in batch.column(0).cast(pa.binary()):
                        number += 1
                        yield number, item.as_py()
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                told = first_line(error).replace(f' in file "{copy}"', "").partition("record/value")[0].rstrip(" ,in")
                raise SourceError(
                    f"{where} is not JSON behind item {number}: {told}; fix it, or write one object a line: jq -c '.[]'"
                ) from error
        if layout == "array" and not _tail(copy).endswith(b"]"):  # DuckDB accepts an array that was cut after a comma
            raise SourceError(f"{where} ends within its array, behind item {number}: it was cut; write it again")


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().rstrip()


def _decoded(files: fs.FileSystem, data_file: DataFile, encoding: str, copy: Path) -> None:
    with reading(data_file.path, "JSON"):
        stream = BufferedReader(opened(files, data_file), 1 << 20)
    with (
        stream,
        _decoding(data_file, encoding),
        TextIOWrapper(stream, encoding=encoding, newline="") as text,
        copy.open("w", encoding="utf-8", newline="", errors="surrogatepass") as out,
    ):
        while True:
            with reading(data_file.path, "JSON"):
                piece = text.read(1 << 20)
            if not piece:
                return
            out.write(piece)


@contextmanager
def _decoding(data_file: DataFile, encoding: str) -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        if isinstance(error.__cause__, UnicodeError):
            raise undecodable(shown(data_file.path), error.__cause__, encoding) from error
        raise


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_float=_number, object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{where} is not UTF-8: byte {line[error.start]:#04x} at position {error.start}; {advice(line[error.start])}"
        ) from error
    except json.JSONDecodeError as error:
        raise SourceError(f"{where} is not JSON: {error.msg} at character {error.pos + 1}; fix or remove the line") from error
    except (RecursionError, ValueError) as error:  # nested thousands deep, or a number of thousands of digits
        raise SourceError(f"{where} cannot be read: {error}; fix or remove the line") from error
    if not isinstance(value, dict):
        raise SourceError(f'{where} holds a JSON {_NAMES.get(type(value), "null")}, not an object; write it as {{"text": ...}}')
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is larger than a double holds")
    return value


_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}
