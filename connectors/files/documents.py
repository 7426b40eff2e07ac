"""Text files as rows: one file, one row, with its path and its text."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import fs

from connectors.copied.source import Rows
from connectors.copied.widen import unchecked_text
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.files.encoding import HEAD_BYTES, UTF8, Utf8Evidence, encoding_of, undecodable
from connectors.files.form import TextForm
from connectors.paths.files import DataFile

SCHEMA = pa.schema([("path", pa.string()), ("text", pa.string())])
MAX_FILE_BYTES = 256 << 20
BATCH_BYTES = 8 << 20


def document_rows(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Rows:
    """``path`` is relative to the folder or glob that was named.

    A file that is not UTF-8, among others that are, is an error of its row. Files that are all in another encoding are refused.
    """
    for data_file in data_files:
        if data_file.size_bytes > MAX_FILE_BYTES:
            raise SourceError(
                f"{shown(data_file.path)} has {data_file.size_bytes:,} bytes; the limit for a row's text is {MAX_FILE_BYTES:,}"
            )
    return SCHEMA, _batches(files, data_files, form)


def _batches(files: fs.FileSystem, data_files: tuple[DataFile, ...], form: TextForm) -> Iterator[pa.RecordBatch]:
    paths: list[str] = []
    texts: list[bytes | None] = []
    held_bytes = 0
    evidence = Utf8Evidence()
    for data_file in data_files:
        text = _text(files, data_file, form)
        if form.encoding is None:
            evidence.see(shown(data_file.path), text)
        paths.append(data_file.relative)
        texts.append(text)
        held_bytes += len(text)
        if held_bytes >= BATCH_BYTES or len(texts) >= 1024:
            yield _batch(paths, texts)
            paths, texts, held_bytes = [], [], 0
    evidence.check()
    if paths:
        yield _batch(paths, texts)


def _text(files: fs.FileSystem, data_file: DataFile, form: TextForm) -> bytes:
    """The file's text as UTF-8. A file taken for UTF-8 is returned as stored, valid or not."""
    with reading(data_file.path, "text"), files.open_input_stream(data_file.path, compression=None) as stream:
        raw = bytes(stream.read())
    encoding = encoding_of(raw[:HEAD_BYTES], form.encoding)
    if encoding in UTF8:
        return raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode(encoding).encode()
    except UnicodeError as error:
        raise undecodable(shown(data_file.path), error, encoding) from error


def _batch(paths: list[str], texts: list[bytes | None]) -> pa.RecordBatch:
    names = unchecked_text([path.encode("utf-8", "surrogateescape") for path in paths])
    return pa.record_batch([names, unchecked_text(texts)], schema=SCHEMA)
