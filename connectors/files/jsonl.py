"""JSON lines: one object a line, columns as wide as all their values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import pyarrow as pa
from pyarrow import fs

from connectors.copied.source import Rows
from connectors.copied.widen import Columns, batch_of
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.files.stream import opened
from connectors.paths.files import DataFile

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20  # of lines
MAX_LINE_BYTES = 16 << 20  # an object takes up to 30 times its bytes once it is read
_FLATTEN = "write one object a line: jq -c '.[]'"


def jsonl_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...]) -> Rows:
    """Columns of all files in the order they first occur; a line without one has null there. Objects and lists become JSON text.

    Reads everything twice: the first pass finds the columns. Raises `SourceError` naming the line that is no JSON object.
    """
    columns = Columns()
    for row, _ in _objects(files, data_files):
        columns.see(row)
    schema = columns.schema
    return schema, _batches(schema, _objects(files, data_files))


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


def _objects(files: fs.FileSystem, data_files: tuple[DataFile, ...]) -> Iterator[tuple[dict[str, Any], int]]:
    for data_file in data_files:
        where = shown(data_file.path)
        for number, line in _lines(files, data_file):
            if line.strip():
                yield _object(line, f"{where} line {number}"), len(line)


def _lines(files: fs.FileSystem, data_file: DataFile) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, counted from 1."""
    with reading(data_file.path, "JSON lines"), BufferedReader(opened(files, data_file), 1 << 20) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise SourceError(
                    f"{shown(data_file.path)} line {number} is longer than {MAX_LINE_BYTES >> 20} MiB; cut it into rows, or leave it out"
                )
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{where} is not UTF-8: byte {line[error.start]:#04x} at position {error.start}; fix or remove the line"
        ) from error
    except json.JSONDecodeError as error:
        if line.strip() == b"[":
            raise SourceError(f"{where} begins a JSON array; {_FLATTEN}") from error
        raise SourceError(f"{where} is not JSON: {error.msg} at character {error.pos + 1}; fix or remove the line") from error
    except (RecursionError, ValueError) as error:  # nested thousands deep, or a number of thousands of digits
        raise SourceError(f"{where} cannot be read: {error}; fix or remove the line") from error
    if not isinstance(value, dict):
        advice = _FLATTEN if isinstance(value, list) else 'write it as {"text": ...}'
        raise SourceError(f"{where} holds a JSON {_NAMES.get(type(value), 'null')}, not an object; {advice}")
    return value


_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}
