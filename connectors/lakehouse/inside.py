"""Applies the client's source rules to the files of a table format, also to those that its log names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.paths.location import Location

_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def check_folder(location: Location) -> None:
    """Raise `SourceError` if a file below the folder leads outside what may be read: a library follows links unchecked."""
    rules = location.rules
    if rules is None or location.local is None:
        return
    with reading(location.uri):
        entries = location.files.get_file_info(fs.FileSelector(location.path, recursive=True))
    for entry in entries:
        if entry.type != fs.FileType.Directory and not entry.base_name.startswith("."):
            rules.check_file(entry.path)


def check_named(file: str, location: Location) -> None:
    """Raise `SourceError` for a file named by a table's log that the client may not read. Without rules all may be read."""
    rules = location.rules
    if rules is None:
        return
    scheme = _ADDRESS.match(file)
    if scheme is not None and scheme[1].lower() != "file":
        rules.check_address(file)
        return
    path = unquote(re.sub(r"^file:(//(localhost)?)?(?=/)", "", file))
    if not path.startswith("/") or ".." in Path(path).parts:
        raise SourceError(f"{location.label} names the file {shown(file)}, which is no plain path; submit it as the server's own user")
    rules.check_file(path)


def plain_types(schema: pa.Schema) -> pa.Schema:
    """The schema with the types that Parquet files give: no views, no large offsets, no metadata."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def plain_batches(batches: Iterator[pa.RecordBatch], schema: pa.Schema, path: str, kind: str) -> Iterator[pa.RecordBatch]:
    """A library's batches, cast to the types of ``schema``. Errors name ``path`` and the ``kind`` of table."""
    while True:
        with reading(path, kind):
            batch = next(batches, None)
            if batch is None:
                return
            columns = [column.cast(plain) for column, plain in zip(batch.columns, schema.types, strict=True)]
            batch = pa.record_batch(columns, schema=schema)
        yield batch


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_list(kind) and not pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind
