"""Read a ``multipart/form-data`` upload in pieces, and write its file straight to its final place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from connectors.durable import publish
from harvester.errors import ParameterError, TooLargeError
from harvester.serve.http.jobs.intake import Receipt

MAX_FIELDS = 16
MAX_FIELD_BYTES = 4096
LONGEST_NAME = 255


@dataclass(slots=True)
class Form:
    """The plain fields and the file's name. Its content is at the path of the receipt given to `receive`."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


class _Parts:
    """Callbacks of the parser. Every plain field is limited in size; the file is written to ``target`` as it comes."""

    def __init__(self, target: BinaryIO, max_bytes: int | None) -> None:
        self.form = Form()
        self.file_bytes = 0
        self.ended = False
        self._target = target
        self._max_bytes = max_bytes
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name: str | None = None
        self._is_file = False

    def on_part_begin(self) -> None:
        self._headers = {}
        self._value = bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.form.filename is not None:
                raise ParameterError("the form holds more than one file; upload one at a time", "file")
            name = options.get(b"filename", b"").decode("utf-8", "replace")
            self.form.filename = (name.replace("\\", "/").rpartition("/")[2] or "upload.jsonl")[:LONGEST_NAME]
        elif len(self.form.fields) == MAX_FIELDS:
            raise ParameterError(f"the form has more than {MAX_FIELDS} fields; send file, purpose and expires_after")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.file_bytes += end - start
            if self._max_bytes is not None and self.file_bytes > self._max_bytes:
                raise too_large(self._max_bytes)
            self._target.write(data[start:end])
        elif len(self._value) + end - start > MAX_FIELD_BYTES:
            raise ParameterError(f"field {str(self._name)[:40]!r} is longer than {MAX_FIELD_BYTES} bytes; shorten it", self._name)
        else:
            self._value += data[start:end]

    def on_part_end(self) -> None:
        if not self._is_file and self._name:
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")

    def on_end(self) -> None:
        self.ended = True


def too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"the file is larger than {max_bytes} bytes, the most that this server takes; split it")


def boundary_of(content_type: str) -> bytes:
    """Raises `ParameterError` if the request is not multipart/form-data."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise ParameterError("the request is not an upload; send multipart/form-data with the fields file and purpose")
    return bytes(boundary)


async def receive(chunks: AsyncIterator[bytes], boundary: bytes, receipt: Receipt, max_bytes: int | None) -> Form:
    """Read a form; its file is at the receipt's path afterwards, on disk and whole. Holds one chunk in memory.

    Raises `ParameterError` for a form that is damaged or lacks its file, `TooLargeError` as soon as the file is above ``max_bytes``
    or what its key may store, and `StorageError`; nothing is left at the path then.
    """
    with ExitStack() as stack:
        parts = _Parts(stack.enter_context(publish(receipt.path)), max_bytes)
        callbacks = {name: getattr(parts, name) for name in dir(parts) if name.startswith("on_")}
        try:
            parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of the same names
            async for chunk in chunks:
                parser.write(chunk)
                await receipt.grow(parts.file_bytes)
        except FormParserError as error:
            raise ParameterError(f"the form cannot be read: {str(error)[:200]}; send it again") from error
        if parts.form.filename is None:
            raise ParameterError("the form lacks the field file; send the fields file and purpose", "file")
        if not parts.ended:
            raise ParameterError("the form ends before its closing boundary; send it again", "file")
        await _published(stack.pop_all(), receipt.path)
    return parts.form


async def _published(stack: ExitStack, path: Path) -> None:
    """Close the file, which syncs it to disk. If the client hangs up meanwhile, remove it afterwards: nothing would count it."""
    closing = asyncio.ensure_future(asyncio.to_thread(stack.close))

    def remove(closed: asyncio.Future[None]) -> None:
        if not closed.cancelled() and closed.exception() is None:
            path.unlink(missing_ok=True)

    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        closing.add_done_callback(remove)
        raise
