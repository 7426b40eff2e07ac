"""Arrow IPC streams over HTTP that resume after a broken connection. One batch is in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from harvester.api.errors import HarvesterError, UnreachableError
from harvester.api.flow import RETRY_S
from harvester.api.wire import Wire

RESUMES = 5  # in a row, with nothing received in between
_END = b"\xff\xff\xff\xff\0\0\0\0"  # end-of-stream marker of a complete stream


class Cursor:
    """How far a job's results were read: the part, its edition, and the number of its rows read."""

    def __init__(self) -> None:
        self.part: str | None = None
        self.edition = ""
        self.rows = 0

    def params(self) -> dict[str, Any]:
        return {} if self.part is None else {"part": self.part, "edition": self.edition, "offset": self.rows}

    def pass_over(self, batch: pa.RecordBatch, told: dict[bytes, bytes]) -> None:
        part = told[b"part"].decode()
        self.rows = batch.num_rows + (self.rows if part == self.part else 0)
        self.part, self.edition = part, told[b"edition"].decode()


def rows_of(wire: Wire, job_id: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of a job's results, in the order of their parts."""
    cursor = Cursor()

    def read() -> Iterator[pa.Schema | pa.RecordBatch]:
        with wire.stream(f"/api/jobs/{job_id}/results", cursor.params()) as pieces:
            for batch, told in _decoded(pieces):
                if isinstance(batch, pa.RecordBatch):
                    cursor.pass_over(batch, told)
                yield batch

    return _begun(_resumed(read))


def answer_of(wire: Wire, answer_id: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of a query's answer, which the server keeps as a file."""
    got_bytes = 0

    def pieces() -> Iterator[bytes]:
        nonlocal got_bytes
        left = RESUMES
        while True:
            try:
                with wire.stream(f"/api/sql/answers/{answer_id}", {"offset": got_bytes}) as found:
                    for piece in found:
                        got_bytes, left = got_bytes + len(piece), RESUMES
                        yield piece
                    return
            except UnreachableError:
                left = _waited(left)

    return _begun(batch for batch, _ in _decoded(pieces()))


def _resumed(read: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    left, has_schema = RESUMES, False
    while True:
        try:
            for found in read():
                if isinstance(found, pa.RecordBatch):
                    left = RESUMES
                elif has_schema:
                    continue
                has_schema = True
                yield found
            return
        except UnreachableError:
            left = _waited(left)


def _waited(left: int) -> int:
    """Back off, then return the tries left, one less. Re-raises the current exception if none was left."""
    if left == 0:
        raise
    time.sleep(RETRY_S * 2 ** (RESUMES - left))
    return left - 1


def _begun(found: Iterator[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    return next(found), found


def _decoded(pieces: Iterator[bytes]) -> Iterator[tuple[Any, dict[bytes, bytes]]]:
    """The schema, then each batch with its metadata. Raises `UnreachableError` for a stream that ends early."""
    source = _Bytes(pieces)
    try:
        reader = pa.ipc.open_stream(pa.PythonFile(source, "r"))
        yield reader.schema, {}
        while True:
            try:
                found = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            yield found.batch, dict(found.custom_metadata or {})
    except pa.ArrowInvalid as error:
        if source.is_drained:
            raise UnreachableError(f"the server's answer broke off ({error}); read it again") from error
        raise HarvesterError(f"the server's answer is not Arrow: {error}; install the same version on both sides") from error
    if source.tail != _END:
        raise UnreachableError("the server's answer broke off; read it again")


class _Bytes:
    """Forward-only file object over an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")
        self.tail = b""  # the last bytes that were read
        self.is_drained = False
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        found: list[memoryview] = []
        wanted = size
        while wanted != 0:
            if not self._left:
                self._left = memoryview(next(self._pieces, b""))
                if not self._left:
                    self.is_drained = True
                    break
            some = self._left if wanted < 0 else self._left[:wanted]
            self._left = self._left[len(some) :]
            wanted -= len(some) if wanted > 0 else 0
            found.append(some)
        whole = b"".join(found)
        self.tail = (self.tail + whole[-len(_END) :])[-len(_END) :]
        return whole

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
