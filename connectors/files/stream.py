"""A text file read forward, decompressed by its suffix; a decompression bomb is refused."""

from __future__ import annotations

from io import RawIOBase
from typing import Any

import pyarrow as pa
from pyarrow import fs

from connectors.edge import shown
from connectors.errors import SourceError
from connectors.paths.files import DataFile
from connectors.paths.names import codec_of

FREE_BYTES = 256 << 20  # up to here any ratio is allowed
MAX_RATIO = 200  # text that repeats itself comes to about 100; a bomb to 1,000 and more


def opened(files: fs.FileSystem, data_file: DataFile) -> Any:
    """A stream that Arrow can read too. Reading it raises `SourceError` if the file is a decompression bomb."""
    codec = codec_of(data_file.relative)
    stream = files.open_input_stream(data_file.path, compression=codec)  # by itself Arrow looks at the path, case and all
    if codec is None:
        return stream
    return pa.PythonFile(_Counted(stream, data_file), mode="r")


class _Counted(RawIOBase):
    def __init__(self, stream: Any, data_file: DataFile) -> None:
        self._stream = stream
        self._label = shown(data_file.path)
        self._most = max(FREE_BYTES, MAX_RATIO * data_file.size_bytes)
        self._passed = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._stream.read(size if size >= 0 else self._most + 1))
        self._passed += len(data)
        if self._passed > self._most:
            raise SourceError(f"{self._label} becomes more than {self._most:,} bytes, over {MAX_RATIO} times its size; decompress it first")
        return data

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
