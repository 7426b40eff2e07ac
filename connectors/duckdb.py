"""A table or query of a DuckDB file as a source, read from a Parquet snapshot that is made when it is opened."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from connectors.base import RowGroup
from connectors.database import Database
from connectors.edge import reading
from connectors.location import locate
from connectors.naming import source_name
from connectors.parquet import ParquetSource
from connectors.request import check_unique
from connectors.snapshot import Origin, latest_snapshot, snapshot_path, write_snapshot

SUFFIXES = (".duckdb", ".ddb", ".db")


class DuckdbSource:
    """Rows of one table or query, copied to Parquet once, so that the user's file is free and the row order stands still.

    With ``snapshot_dir`` the copy stays there and is used again by whoever opens the same table or query of the same file; the file is
    then not opened, and need not be there. Without it the copy goes away with `close`.

    ``fingerprint`` asks for the copy with that fingerprint where there is one, whatever became of the file since: work under way goes on
    with the rows that it began with.
    """

    def __init__(self, origin: Origin, snapshot_dir: Path | None = None, fingerprint: str | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="harvester-") if snapshot_dir is None else None
        folder = Path(self._temporary.name) if self._temporary is not None else Path(snapshot_dir or "")
        try:
            snapshot, self._fingerprint = _snapshot(origin, folder, fingerprint)
            self._rows = ParquetSource(locate(str(snapshot)), _name_of(origin))
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
        """Over the file's path, size and time of change (its write-ahead log's too) and the table or query, when the copy was made."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _name_of(origin: Origin) -> str:
    return source_name((origin.table or "").rpartition(".")[2], Path(origin.path).stem)


def _snapshot(origin: Origin, folder: Path, fingerprint: str | None) -> tuple[Path, str]:
    """A complete snapshot of ``origin`` in ``folder`` and its fingerprint: one that is there, or a new one."""
    if fingerprint is not None and snapshot_path(folder, fingerprint).exists():
        return snapshot_path(folder, fingerprint), fingerprint
    if not Path(origin.path).exists() and (kept := latest_snapshot(folder, origin)):
        return kept
    now = _fingerprint(origin) if Path(origin.path).exists() else ""
    if now and snapshot_path(folder, now).exists():
        return snapshot_path(folder, now), now
    with Database.open(Path(origin.path)) as database:
        now = _fingerprint(origin)  # again, now that nobody can write to the file
        schema, batches = database.rows(origin.table, origin.query)
        check_unique(schema.names, f"the query on {origin.path}")
        write_snapshot(snapshot_path(folder, now), schema, batches, origin, now)
    return snapshot_path(folder, now), now


def _fingerprint(origin: Origin) -> str:
    # What was committed last may still be in the write-ahead log, with the file itself unchanged.
    paths = [Path(origin.path), Path(f"{origin.path}.wal")]
    with reading(origin.path):
        stats = [(stat.st_size, stat.st_mtime_ns) if path.exists() and (stat := path.stat()) else None for path in paths]
    return hashlib.sha256(json.dumps([origin.path, stats, origin.table, origin.query]).encode()).hexdigest()
