"""Ends a web source that gives its bytes too slowly: it would hold one of the few threads that read sources for hours."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from connectors.edge import shown
from connectors.errors import SourceAwayError

WINDOW_S = 60.0  # spent waiting for the source's server
MIN_BYTES_S = 32 << 10
ASKED_BYTES = 64 << 10  # what an answer counts as at least: asking for many small files takes longer than reading them
_TELLING = ("ETag", "Content-MD5", "Digest", "Last-Modified")  # headers that fsspec keeps
T = TypeVar("T")


class Pace:
    """Over each 60 s that its readers wait for a source, summed over threads, it has to give 32 KiB/s."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        self._waited_s = 0.0
        self._bytes = 0

    def timed(self, call: Callable[..., T], *given: Any, least_bytes: int = ASKED_BYTES, **options: Any) -> T:
        """The result of ``call``, whose bytes count, ``least_bytes`` at least, or so many for each entry of a list.

        Raises `SourceAwayError` for a source that is too slow.
        """
        began_s = monotonic()
        found = call(*given, **options)
        waited_s = monotonic() - began_s
        with self._lock:
            self._waited_s += waited_s
            self._bytes += max(len(found), least_bytes) if isinstance(found, bytes) else least_bytes * _answers(found)
            if self._waited_s < WINDOW_S:
                return found
            seen_s, seen_bytes, self._waited_s, self._bytes = self._waited_s, self._bytes, 0.0, 0
        if seen_bytes < MIN_BYTES_S * seen_s:
            raise SourceAwayError(
                f"cannot read {shown(self._uri)}: in {seen_s:.0f} s its server gave {seen_bytes:,} bytes, less than "
                f"{MIN_BYTES_S:,} a second; try again later, or submit a copy that is read faster"
            )
        return found


def _answers(found: object) -> int:
    """How many answers of the server it took at most: fsspec may ask for each entry of a list."""
    return max(1, len(found)) if isinstance(found, list) else 1


class PacedHandler(fs.FSSpecHandler):  # type: ignore[misc]  # Arrow has no types
    """fsspec's files over HTTP for Arrow, which keep to a `Pace`."""

    def __init__(self, files: Any, uri: str) -> None:
        super().__init__(files)
        self._pace = Pace(uri)

    def get_file_info(self, paths: Any) -> Any:
        ask = super().get_file_info
        return [info for path in paths for info in self._pace.timed(ask, [path])]

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._pace.timed(super().get_file_info_selector, selector)

    def stamp(self, path: str) -> str | None:
        """What the server tells of a file's content, which is another for another one; None where it tells nothing.

        fsspec's ``ukey`` is made of the address alone.
        """
        told = self._pace.timed(self.fs.info, path)
        return json.dumps([told.get(name) for name in _TELLING]) if any(name in told for name in _TELLING) else None

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        from fsspec.implementations.http import HTTPStreamFile  # imports aiohttp, which other sources do without

        if not self._pace.timed(self.fs.isfile, path):
            raise FileNotFoundError(path)
        file = self._pace.timed(self.fs.open, path, mode="rb")
        if isinstance(file, HTTPStreamFile):  # one answer, read in pieces
            file.read = partial(self._pace.timed, file.read, least_bytes=0)
        else:  # a request for each block
            file.cache.fetcher = partial(self._pace.timed, file.cache.fetcher)
        return pa.PythonFile(file, mode="r")
