"""A table or query of a DuckDB file, or of a database that DuckDB attaches, to be copied when it is opened."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.databases.database import Database
from connectors.edge import reading
from connectors.paths.names import source_name


class DuckdbReading:
    """A DuckDB file on a local disk."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.name = source_name((origin.table or "").rpartition(".")[2], Path(origin.path).stem)

    def fingerprint(self) -> str | None:
        """Over the file's path, size and time of change (its write-ahead log's too) and the table or query."""
        return stats_digest(self.origin, ".wal")

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with Database.open(Path(self.origin.path)) as database, database.rows(self.origin.table, self.origin.query) as rows:
            yield rows


class AttachedReading:
    """Any database that DuckDB's ATTACH reaches (Postgres, MySQL, ...), named as ATTACH names it: ``postgres:dbname=shop``.

    Not DuckLake: its rows lie in files of their own, which no query may read here.

    There is no cheap way to see whether its rows changed, so each opening without a known fingerprint copies them again.
    """

    def __init__(self, origin: Origin, scratch: Path | None = None) -> None:
        """``scratch``: folder for what a query writes beyond its memory; None: the system's temporary folder."""
        self.origin = origin
        self.name = source_name((origin.table or "").rpartition(".")[2], origin.path.partition(":")[0])
        self._scratch = scratch
        self._fingerprint = secrets.token_hex(32)

    def fingerprint(self) -> str | None:
        return self._fingerprint

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with (
            Database.attach(self.origin.path, self._scratch, exact=self.origin.table is not None) as database,
            database.rows(self.origin.table, self.origin.query) as rows,
        ):
            yield rows


def stats_digest(origin: Origin, log_suffix: str) -> str | None:
    """Digest of the origin, and of size and time of change of its file and log; None if there is no file."""
    # What was committed last may still be in the log, with the file itself unchanged. Reading SQLite may make an empty log.
    paths = [Path(origin.path), Path(f"{origin.path}{log_suffix}")]
    with reading(origin.path):
        if not paths[0].exists():
            return None
        stats = [(stat.st_size, stat.st_mtime_ns) if path.exists() and (stat := path.stat()).st_size else None for path in paths]
    return hashlib.sha256(json.dumps([origin.path, stats, origin.table, origin.query]).encode()).hexdigest()
