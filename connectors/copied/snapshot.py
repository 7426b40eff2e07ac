"""A result set kept as one Parquet file: its row order is fixed, and its database is no longer held open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.durable import publish
from connectors.edge import shown
from connectors.errors import SourceError
from connectors.parquet.groups import GROUP_ROWS, grouped

GROUP_BYTES = 128 << 20
_FINGERPRINT = b"harvester.fingerprint"
_ORIGIN = b"harvester.origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot was made from: a table or a query of a database, or the files of ``path`` where both are None."""

    path: str
    table: str | None = None
    query: str | None = None

    @property
    def label(self) -> str:
        """Name used in messages."""
        if self.query is not None:
            return f"the query on {shown(self.path)}"
        return shown(self.path) if self.table is None else f"table {self.table!r} on {shown(self.path)}"


def _kept(origin: Origin) -> dict[str, str | None]:
    """The origin as stored in the copy's metadata, with credentials masked."""
    return asdict(origin) | {"path": shown(origin.path)}


def snapshot_path(folder: Path, fingerprint: str) -> Path:
    return folder / f"snapshot-{fingerprint[:32]}.parquet"


def latest_snapshot(folder: Path, origin: Origin) -> tuple[Path, str] | None:
    """The newest complete snapshot of ``origin`` in ``folder``, and its fingerprint."""
    found = sorted(folder.glob("snapshot-*.parquet"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in found:
        metadata = _metadata(path)
        if json.loads(metadata.get(_ORIGIN, b"null")) == _kept(origin):
            return path, metadata[_FINGERPRINT].decode()
    return None


def _metadata(path: Path) -> dict[bytes, bytes]:
    try:
        return pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException):
        return {}  # not a snapshot, or a damaged one: either way not one to use


def write_snapshot(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], origin: Origin, fingerprint: str) -> None:
    """Write ``batches`` to ``path`` as they come, in row groups of 16,384 rows; ``path`` appears when all is on disk.

    Holds one row group in memory. Raises `SourceError` for a column that Parquet cannot hold and for no rows at all, `StorageError` for the
    disk's errors, and whatever ``batches`` raises; ``path`` is then not there.
    """
    _check_types(schema)
    marked = schema.with_metadata({_FINGERPRINT: fingerprint, _ORIGIN: json.dumps(_kept(origin))})
    with publish(path, keep_first=True) as file:  # two readers may write it at once, and a query may give another order each time
        if _write_groups(file, marked, batches) == 0:
            raise SourceError(
                f"{origin.label} {'holds' if origin.table is origin.query is None else 'gives'} no rows; submit at least one row"
            )


def _write_groups(file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in grouped(schema, batches, GROUP_BYTES):
            writer.write_table(table, row_group_size=GROUP_ROWS)
            rows += table.num_rows
    return rows


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowNotImplementedError as error:
            raise SourceError(
                f"column {field.name!r} is of type {field.type}, which cannot be kept; leave it out, or cast it (--query can)"
            ) from error
