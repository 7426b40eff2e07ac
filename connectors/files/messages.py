"""Size in memory of Arrow IPC record batches, read from the headers of the messages alone.

Arrow's format: `Message.fbs`, as flatbuffers; a compressed buffer begins with its decompressed size.
"""

from __future__ import annotations

import struct
from typing import Any

from connectors.errors import SourceError

MAX_BATCH_BYTES = 1 << 30
MAX_BATCH_ROWS = 1 << 26
_MAX_HEADER_BYTES = 64 << 20
_MAGIC = b"ARROW1\0\0"
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

    def buffers(self, field: int) -> list[tuple[int, int]]:
        """Offsets and lengths."""
        place = self._place(field)
        if place is None:
            return []
        start = place + self._int("<I", place)
        count = self._int("<I", start)
        return [struct.unpack_from("<qq", self._raw, start + 4 + 16 * index) for index in range(count)]


def check_messages(stream: Any, where: str) -> None:
    """Check the messages of ``stream``, a seekable file or stream of Arrow IPC at its start.

    Raises `SourceError` for a batch that would not fit into memory. Unreadable messages are left for Arrow to report.
    """
    at = len(_MAGIC) if bytes(stream.read(len(_MAGIC))) == _MAGIC else 0
    while (head := _header(stream, at)) is not None:
        raw, body = head
        try:
            message = _Table(raw, struct.unpack_from("<I", raw)[0])
            at = body + message.number(3, "<q")
            batch = message.table(2) if message.number(1, "<B") in (_DICTIONARY, _BATCH) else None
            if message.number(1, "<B") == _DICTIONARY and batch is not None:
                batch = batch.table(1)
            rows, held_bytes = (0, 0) if batch is None else (batch.number(0, "<q"), _held_bytes(stream, body, batch))
        except struct.error:
            return
        if rows > MAX_BATCH_ROWS or held_bytes > MAX_BATCH_BYTES:
            raise SourceError(
                f"{where} holds a record batch of {rows:,} rows and {held_bytes:,} bytes; the limits are {MAX_BATCH_ROWS:,} and "
                f"{MAX_BATCH_BYTES:,}: write it in smaller batches"
            )
        if at <= body - len(raw) - 8:
            return


def _header(stream: Any, at: int) -> tuple[bytes, int] | None:
    """The next message's own header, and where its body begins; None at the end, and where there is no header."""
    stream.seek(at)
    prefix = bytes(stream.read(8))
    if len(prefix) < 8:
        return None
    mark, length = struct.unpack("<iI", prefix)
    start = at + 8
    if mark != -1:  # written before Arrow 0.15
        length, start = mark, at + 4
    if not 0 < length <= _MAX_HEADER_BYTES:
        return None
    stream.seek(start)
    raw = bytes(stream.read(length))
    return (raw, start + length) if len(raw) == length else None


def _held_bytes(stream: Any, body: int, batch: _Table) -> int:
    is_compressed = batch.table(3) is not None
    held = 0
    for offset, length in batch.buffers(2):
        if is_compressed and length >= 8:
            stream.seek(body + offset)
            (said,) = struct.unpack("<q", bytes(stream.read(8)))
            held += length if said == -1 else max(0, said)
        else:
            held += max(0, length)
    return held
