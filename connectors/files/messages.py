"""Size in memory of Arrow IPC record batches, read from the headers of the messages alone.

Arrow's format: `Message.fbs` and `File.fbs`, as flatbuffers; a compressed buffer begins with its decompressed size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from connectors.errors import SourceError

MAX_BATCH_BYTES = 1 << 30
MAX_BATCH_ROWS = 1 << 26
_MAX_HEADER_BYTES = 64 << 20
_MAGIC = b"ARROW1"
_BUFFER = struct.Struct("<qq")  # offset and length
_BLOCK = struct.Struct("<qi4xq")  # of a footer: offset, bytes of the header with its prefix, bytes of the body
_DICTIONARY, _BATCH = 2, 3  # kinds of a message's header


class _Table:
    """A table of a flatbuffer: fields by number."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw, self._at = raw, at
        self._vtable = at - self._int("<i", at)

    def _int(self, form: str, at: int) -> int:
        if at < 0:
            raise struct.error("an offset leads out of the header")
        return int(struct.unpack_from(form, self._raw, at)[0])

    def _place(self, field: int) -> int | None:
        entry = self._vtable + 4 + 2 * field
        offset = self._int("<H", entry) if 4 + 2 * field < self._int("<H", self._vtable) else 0
        return self._at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return 0 if place is None else self._int(form, place)

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._raw, place + self._int("<I", place))

    def structures(self, field: int, form: struct.Struct) -> Iterator[tuple[int, ...]]:
        """The members of each structure of a vector."""
        place = self._place(field)
        if place is not None:
            start = place + self._int("<I", place)
            for index in range(self._int("<I", start)):
                yield form.unpack_from(self._raw, start + 4 + form.size * index)


def check_messages(file: Any, where: str) -> None:
    """Check the messages that Arrow would read of ``file``, a seekable file or stream of Arrow IPC, from their headers alone.

    Raises `SourceError` for a batch that would not fit into memory, and for headers that cannot be read. What a stream that was cut lacks
    is left for Arrow to report.
    """
    try:
        for raw, body in _blocks(file) if is_file(file) else _stream(file):
            message = _Table(raw, struct.unpack_from("<I", raw)[0])
            batch = message.table(2) if message.number(1, "<B") in (_DICTIONARY, _BATCH) else None
            if message.number(1, "<B") == _DICTIONARY and batch is not None:
                batch = batch.table(1)
            rows, held_bytes = (0, 0) if batch is None else (batch.number(0, "<q"), _held_bytes(file, body, batch))
            if rows > MAX_BATCH_ROWS or held_bytes > MAX_BATCH_BYTES:
                raise SourceError(
                    f"{where} holds a record batch of {rows:,} rows and {held_bytes:,} bytes; the limits are {MAX_BATCH_ROWS:,} and "
                    f"{MAX_BATCH_BYTES:,}: write it in smaller batches"
                )
    except (struct.error, ValueError) as error:
        raise SourceError(f"{where} is not Arrow IPC, or is damaged: a header cannot be read ({error}); write it again") from error


def is_file(file: Any) -> bool:
    """Whether it is in Arrow's file format; else it is a stream, which has no magic number."""
    file.seek(0)
    return bytes(file.read(len(_MAGIC))) == _MAGIC


def _stream(file: Any) -> Iterator[tuple[bytes, int]]:
    """The messages' own headers, and where their bodies begin, up to the mark that ends the stream, or to where it was cut."""
    at = 0
    while (head := _header(file, at)) is not None:
        yield head
        raw, body = head
        body_bytes = _Table(raw, struct.unpack_from("<I", raw)[0]).number(3, "<q")
        if body_bytes < 0:
            raise ValueError("a body has a negative size")
        at = body + body_bytes


def _blocks(file: Any) -> Iterator[tuple[bytes, int]]:
    """The same of a file: Arrow goes to where its footer says that dictionaries and batches are, whatever lies between."""
    size = file.size()
    trailer_bytes = 4 + len(_MAGIC)
    file.seek(max(0, size - trailer_bytes))
    (length,) = struct.unpack("<i", bytes(file.read(4)))
    if not 0 < length <= min(size - trailer_bytes, _MAX_HEADER_BYTES):
        raise ValueError(f"the footer has {length:,} bytes")
    file.seek(size - trailer_bytes - length)
    raw = bytes(file.read(length))
    footer = _Table(raw, struct.unpack_from("<I", raw)[0])
    for offset, head_bytes, _ in (*footer.structures(2, _BLOCK), *footer.structures(3, _BLOCK)):
        head = _header(file, offset)
        if head is None:
            raise ValueError(f"no message begins at byte {offset:,}, where the footer says")
        yield head[0], offset + head_bytes


def _header(file: Any, at: int) -> tuple[bytes, int] | None:
    """The next message's own header, and where its body begins; None at the end, and where there is no header."""
    file.seek(at)
    prefix = bytes(file.read(8))
    if len(prefix) < 8:
        return None
    mark, length = struct.unpack("<ii", prefix)
    start = at + 8
    if mark != -1:  # written before Arrow 0.15
        length, start = mark, at + 4
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"one has {length:,} bytes")
    if length <= 0:
        return None
    file.seek(start)
    raw = bytes(file.read(length))
    return (raw, start + length) if len(raw) == length else None


def _held_bytes(file: Any, body: int, batch: _Table) -> int:
    is_compressed = batch.table(3) is not None
    held = 0
    for offset, length in batch.structures(2, _BUFFER):
        if is_compressed and length >= 8:
            file.seek(body + offset)
            (said,) = struct.unpack("<q", bytes(file.read(8)))
            held += length if said == -1 else max(0, said)
        else:
            held += max(0, length)
    return held
