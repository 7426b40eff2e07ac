"""Sources copied to Parquet when opened, because they cannot be read from the middle or may change while read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from connectors.base import Closing, RowGroup, check_unique
from connectors.copied.snapshot import Origin, latest_snapshot, snapshot_path, write_snapshot
from connectors.durable import storage_error
from connectors.errors import CopyTooLargeError, SourceError
from connectors.parquet.source import ParquetSource
from connectors.paths.location import locate

Rows = tuple[pa.Schema, Iterator[pa.RecordBatch]]


class Reading(Protocol):
    """Where rows are copied from. Errors are raised as `SourceError`."""

    @property
    def origin(self) -> Origin: ...

    @property
    def name(self) -> str: ...

    def fingerprint(self) -> str | None:
        """Hex digest over metadata that changes when the rows may have changed; None if the origin does not exist now."""

    def rows(self) -> AbstractContextManager[Rows]:
        """All columns and rows, in order, read forward once."""


class CopiedSource(Closing):
    """A `Source` over a Parquet copy of a `Reading`: the origin is not held open, and the row order is fixed.

    With ``snapshot_dir`` the copy is kept there, and used again when the same origin is opened unchanged or no longer exists. Without it
    the copy lies in a temporary folder, in ``scratch`` where given, and `close` deletes it.

    ``fingerprint`` selects the copy with that fingerprint if there is one, even if the origin changed since: a running job keeps the rows
    it began with. Rows of more than ``max_bytes`` in Arrow raise `CopyTooLargeError`.
    """

    def __init__(
        self,
        reading: Reading,
        snapshot_dir: Path | None = None,
        fingerprint: str | None = None,
        max_bytes: int | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._temporary = temporary_folder(scratch) if snapshot_dir is None else None
        folder = Path(self._temporary.name) if self._temporary is not None else Path(snapshot_dir or "")
        try:
            snapshot, self._fingerprint = _copy(reading, folder, fingerprint, max_bytes)
            self._rows = ParquetSource(locate(str(snapshot)), reading.name)
        except BaseException:
            self._clean()
            raise

    @property
    def name(self) -> str:
        return self._rows.name

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    @property
    def row_count(self) -> int:
        return self._rows.row_count

    def fingerprint(self) -> str:
        """The origin's fingerprint when the copy was made."""
        return self._fingerprint

    def row_groups(self) -> Sequence[RowGroup]:
        return self._rows.row_groups()

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        return self._rows.read(group, offset, count, columns)

    def close(self) -> None:
        self._rows.close()
        self._clean()

    def _clean(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def temporary_folder(within: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with its owner; in the system's temporary folder for None. Raises `StorageError`."""
    try:
        if within is not None:
            within.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="harvester-", dir=within)
    except OSError as error:
        raise storage_error("write", within or Path(tempfile.gettempdir()), error) from error


def _copy(reading: Reading, folder: Path, fingerprint: str | None, max_bytes: int | None) -> tuple[Path, str]:
    """Path and fingerprint of a complete copy in ``folder``; copies the rows if there is none."""
    if fingerprint is not None and snapshot_path(folder, fingerprint).exists():
        return snapshot_path(folder, fingerprint), fingerprint
    before = reading.fingerprint()
    if before is None and (kept := latest_snapshot(folder, reading.origin)):
        return kept
    if before is not None and snapshot_path(folder, before).exists():
        return snapshot_path(folder, before), before
    with reading.rows() as (schema, batches):
        check_unique(schema.names, reading.origin.label)
        now = _same(reading, before)  # a first pass may have found names and types already
        copy = snapshot_path(folder, now)
        write_snapshot(copy, schema, _unchanging(reading, now, _bounded(reading, batches, max_bytes)), reading.origin, now)
    return copy, now


def _bounded(reading: Reading, batches: Iterator[pa.RecordBatch], max_bytes: int | None) -> Iterator[pa.RecordBatch]:
    copied_bytes = 0
    for batch in batches:
        copied_bytes += batch.nbytes
        if max_bytes is not None and copied_bytes > max_bytes:
            raise too_large(reading.origin, max_bytes)
        yield batch


def too_large(origin: Origin, max_bytes: int) -> CopyTooLargeError:
    return CopyTooLargeError(f"the rows of {origin.label} take more than {max_bytes:,} bytes, the limit of this key; split them")


def _unchanging(reading: Reading, fingerprint: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; at their end, and for an error in them, raise `SourceError` if the origin changed since the start."""
    try:
        yield from batches
    except Exception:  # of any class, if names and types are those of the rows before
        _same(reading, fingerprint)
        raise
    _same(reading, fingerprint)


def _same(reading: Reading, fingerprint: str | None) -> str:
    """The fingerprint now. Raises `SourceError` if it is another one."""
    now = reading.fingerprint()
    if now is None:
        raise SourceError(f"{reading.origin.label} was removed while it was read; put it back and submit it again")
    if now != fingerprint:
        raise SourceError(f"{reading.origin.label} changed while it was read; submit it again when nobody writes to it")
    return now
