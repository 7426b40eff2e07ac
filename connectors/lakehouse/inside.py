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
# What a URL parser takes for a scheme, a root, a folder above or the end of a path, or leaves out.
_NO_PLAIN_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:|^[/ ]| $|[\\?#\x00-\x1f]")
_S3 = re.compile(r"^s3[an]://", re.IGNORECASE)  # Hadoop's names of the same store


def check_folder(location: Location) -> None:
    """Raise `SourceError` if a file below the folder leads outside what may be read: a library follows links unchecked."""
    rules = location.rules
    if rules is None or location.local is None:
        return
    with reading(location.uri):
        entries = location.files.get_file_info(fs.FileSelector(location.path, recursive=True))
    for entry in entries:
        is_hidden = entry.base_name.startswith(".") and not Path(entry.path).is_symlink()  # no library reads it by itself
        if entry.type != fs.FileType.Directory and not is_hidden:
            rules.check_file(entry.path)


def check_named(file: str, location: Location) -> None:
    """Raise `SourceError` for a file that a table names, as its library opens it, and that the client may not read.

    ``file``: a path or an address. Without rules all may be read.
    """
    rules = location.rules
    if rules is None:
        return
    scheme = _ADDRESS.match(file)
    if scheme is not None and scheme[1].lower() != "file":
        rules.check_address(_S3.sub("s3://", file))
        return
    path = re.sub(r"^file:(//(localhost)?)?(?=/)", "", file)
    if not path.startswith("/") or ".." in Path(path).parts:
        raise SourceError(f"{location.label} names the file {shown(file)}, which is no plain path; submit it as the server's own user")
    rules.check_file(path)


def check_below(url: str, location: Location) -> None:
    """Raise `SourceError` unless a URL of a table's log leads to a file of the table's folder that the client may read."""
    path = unquote(url)
    if _NO_PLAIN_URL.search(url) or ".." in path.split("/"):
        raise SourceError(f"{location.label} names the file {shown(url)!r}, which is not in its folder; submit it as the server's own user")
    location.check_file(f"{location.path}/{path}")


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
