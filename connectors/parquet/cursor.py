"""One row group of one file, read forward in record batches, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.parquet.pages import largest_page
from connectors.paths.files import DataFile

BATCH_BYTES = 4 << 20
MAX_BATCH_ROWS = 1024  # dictionary-coded text is longer than its byte size in the footer says
BUFFER_BYTES = 16 << 20  # of all columns together
WORST_BATCH_BYTES = 256 << 20  # where each value is as long as its longest page


class GroupCursor:
    """Reads ``columns`` of row group ``group`` (counted within its file). Rows only go forward: `take` after `skip` after `take`.

    Holds a read buffer per column, a page per column and a batch; never the column chunk, however long. Without a buffer size, and
    with pre-buffering, Arrow would load the chunk of every column whole. Pages that would not fit into memory are refused before.
    """

    def __init__(self, files: fs.FileSystem, data_file: DataFile, group: int, size: tuple[int, int], columns: Sequence[str]) -> None:
        rows, group_bytes = size
        self.position = 0
        self._opened = _stat(data_file.path) if isinstance(files, fs.LocalFileSystem) else None
        self._path = data_file.path
        self._rest: pa.RecordBatch | None = None
        batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * rows // max(1, group_bytes)))
        with reading(self._path):
            self._check_same(files, data_file)
            self._stream = files.open_input_file(data_file.path)
            buffer_bytes = max(1 << 16, min(1 << 20, BUFFER_BYTES // max(1, len(columns))))
            self._parquet = pq.ParquetFile(self._stream, pre_buffer=False, buffer_size=buffer_bytes)
            # A dictionary entry or a prefix may repeat in each row, but no value is longer than its page.
            page_bytes = largest_page(self._stream, self._parquet, group, set(columns), shown(self._path))
            batch_rows = max(1, min(batch_rows, WORST_BATCH_BYTES // max(1, page_bytes)))
            self._batches: Iterator[pa.RecordBatch] = self._parquet.iter_batches(
                batch_rows, row_groups=[group], columns=list(columns), use_threads=False
            )

    @staticmethod
    def _check_same(files: fs.FileSystem, data_file: DataFile) -> None:
        info = files.get_file_info([data_file.path])[0]
        if info.type == fs.FileType.NotFound:
            raise SourceError(f"{data_file.path} no longer exists; put it back, or submit what is left as a new job")
        if DataFile.of(files, info, data_file.relative) != data_file:
            raise SourceError(f"{data_file.path} changed while it was read; submit it again as a new job")

    def _check_kept(self) -> None:
        """Raise `SourceError` if a local file was written to since it was opened. A replaced or removed file can still be read."""
        now = None if self._opened is None else _stat(self._path)
        if now is not None and self._opened is not None and now != self._opened and now[0] == self._opened[0]:
            raise SourceError(f"{self._path} changed while it was read; submit it again as a new job")

    def skip(self, count: int) -> None:
        """Pass over rows. Costs their decoding: Parquet pages cannot be entered in the middle."""
        for _ in self._slices(count):
            pass

    def take(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows, in as many batches as they came in.

        Raises `SourceError` where the file ends before, and where a local file was overwritten since it was opened.
        """
        try:
            return list(self._slices(count))
        finally:
            self._check_kept()

    def _slices(self, count: int) -> Iterator[pa.RecordBatch]:
        while count > 0:
            batch = self._rest if self._rest is not None else self._next()
            part = batch.slice(0, count)
            self._rest = batch.slice(count) if batch.num_rows > count else None
            self.position += part.num_rows
            count -= part.num_rows
            yield part

    def _next(self) -> pa.RecordBatch:
        with reading(self._path):
            batch = next(self._batches, None)
        if batch is None:
            raise SourceError(f"{self._path} ends at row {self.position} of a row group, before its footer says; write it again")
        return batch

    def close(self) -> None:
        self._rest = None
        self._batches = iter(())
        self._parquet.close()
        self._stream.close()


def _stat(path: str) -> tuple[int, int, int] | None:
    """Inode, time of change and size of a local file; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
