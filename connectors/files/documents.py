"""Text files as rows: one file, one row, with its path and its text."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import fs

from connectors.copied.source import Rows
from connectors.copied.widen import unchecked_text
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.paths.files import DataFile

SCHEMA = pa.schema([("path", pa.string()), ("text", pa.string())])
MAX_FILE_BYTES = 256 << 20
BATCH_BYTES = 8 << 20


def document_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...]) -> Rows:
    """``path`` is that below the folder or glob that was named. Text that is not UTF-8 is kept as it is: an error of its row, later."""
    for data_file in data_files:
        if data_file.size_bytes > MAX_FILE_BYTES:
            raise SourceError(
                f"{shown(data_file.path)} has {data_file.size_bytes:,} bytes; the limit for a row's text is {MAX_FILE_BYTES:,}"
            )
    return SCHEMA, _batches(files, data_files)


def _batches(files: fs.FileSystem, data_files: tuple[DataFile, ...]) -> Iterator[pa.RecordBatch]:
    paths: list[str] = []
    texts: list[bytes | None] = []
    held_bytes = 0
    for data_file in data_files:
        with reading(data_file.path, "text"), files.open_input_stream(data_file.path, compression=None) as stream:
            text = bytes(stream.read())
        paths.append(data_file.relative)
        texts.append(text.removeprefix(b"\xef\xbb\xbf"))
        held_bytes += len(text)
        if held_bytes >= BATCH_BYTES or len(texts) >= 1024:
            yield _batch(paths, texts)
            paths, texts, held_bytes = [], [], 0
    if paths:
        yield _batch(paths, texts)


def _batch(paths: list[str], texts: list[bytes | None]) -> pa.RecordBatch:
    names = unchecked_text([path.encode("utf-8", "surrogateescape") for path in paths])
    return pa.record_batch([names, unchecked_text(texts)], schema=SCHEMA)
