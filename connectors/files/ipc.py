"""Arrow IPC: files and streams, record batch by record batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from connectors.copied.source import Rows
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.files.form import TextForm
from connectors.files.messages import check_messages, is_file
from connectors.paths.files import DataFile

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream; without it a stream that was cut looks like one that ended


def ipc_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Rows:
    """All files must have one schema, whichever of the two formats each is in. Raises `SourceError`."""
    schema = _schema(files, data_files[0])
    for other in data_files[1:]:
        if not _schema(files, other).equals(schema):
            raise SourceError(f"{shown(other.path)} and {shown(data_files[0].path)} differ in their schema; submit them as separate jobs")
    return schema, (batch for data_file in data_files for batch in _batches(files, data_file))


def _schema(files: fs.FileSystem, data_file: DataFile) -> pa.Schema:
    with reading(data_file.path, "Arrow IPC"), files.open_input_file(data_file.path) as file:
        check_messages(file, shown(data_file.path))
        schema = _reader(file).schema.remove_metadata()
        return pa.schema([field.with_type(_kept(field.type)) for field in schema])


def _batches(files: fs.FileSystem, data_file: DataFile) -> Iterator[pa.RecordBatch]:
    with reading(data_file.path, "Arrow IPC"):
        file = files.open_input_file(data_file.path)
    with file:
        with reading(data_file.path, "Arrow IPC"):
            reader = _reader(file)
        rest = iter(range(reader.num_record_batches)) if isinstance(reader, pa.RecordBatchFileReader) else None
        while True:
            with reading(data_file.path, "Arrow IPC"):
                batch = _next(reader, rest)
                if batch is None and rest is None and not _has_end(file):
                    raise SourceError(
                        f"{shown(data_file.path)} ends without the mark that ends an Arrow stream: it was cut; write it again"
                    )
            if batch is None:
                return
            yield _with_kept(batch.replace_schema_metadata(None))


def _kept(kind: pa.DataType) -> pa.DataType:
    """The type as Parquet holds it: dictionaries of views, which polars writes, become plain strings or bytes."""
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        return pa.string()
    return pa.binary() if pa.types.is_dictionary(kind) and pa.types.is_binary_view(kind.value_type) else kind


def _with_kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    for at, field in enumerate(batch.schema):
        kind = _kept(field.type)
        if kind != field.type:
            array = batch.column(at)  # Arrow does not decode views
            batch = batch.set_column(at, field.with_type(kind), array.dictionary.cast(kind).take(array.indices))
    return batch


def _reader(file: Any) -> Any:
    opened = pa.ipc.open_file if is_file(file) else pa.ipc.open_stream
    file.seek(0)
    return opened(file)


def _has_end(file: Any) -> bool:
    size = file.size()
    if size < len(_END):
        return False
    file.seek(size - len(_END))
    return bytes(file.read(len(_END))) == _END


def _next(reader: Any, rest: Iterator[int] | None) -> pa.RecordBatch | None:
    if rest is None:
        return next(reader, None)
    index = next(rest, None)
    return None if index is None else reader.get_batch(index)
