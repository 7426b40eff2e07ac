"""A table or query of a SQLite file, read with Python's own SQLite: no extension to install."""

from __future__ import annotations

import pickle
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from connectors.base import check_unique, listed
from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.copied.widen import Columns, batch_of
from connectors.databases.duckdb import stats_digest
from connectors.edge import first_line
from connectors.errors import SourceError
from connectors.paths.names import source_name

BATCH_ROWS = 1024
_MAGIC = b"SQLite format 3\0"
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_TABLES = "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by name"


def is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class SqliteReading:
    """SQLite does not enforce column types: a column here gets the narrowest type for its values.

    Rows are kept in a temporary file until all are seen: a query that runs again may give other rows.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.name = source_name(origin.table or "", Path(origin.path).stem)

    def fingerprint(self) -> str | None:
        return stats_digest(self.origin, "-wal")

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with _open(self.origin.path) as connection, _failing(self.origin, connection):
            sql = self._select_all(connection) if self.origin.query is None else self.origin.query
            connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise SourceError(f"{self.origin.label} must be one SELECT; given: {' '.join(sql.split())[:80]!r}")
            names = [str(column[0]) for column in cursor.description]
            check_unique(names, self.origin.label)
            columns = Columns(self.origin.label, names)
            with tempfile.TemporaryFile(prefix="harvester-sqlite-") as kept:
                while rows := cursor.fetchmany(BATCH_ROWS):
                    for row in rows:
                        columns.see(dict(zip(names, row, strict=True)))
                    pickle.dump(rows, kept)
                kept.seek(0)
                schema = columns.schema
                yield schema, (batch_of(schema, [dict(zip(names, row, strict=True)) for row in rows]) for rows in _pickled(kept))

    def _select_all(self, connection: sqlite3.Connection) -> str:
        known = _tables(connection)
        for name in known:
            if name.casefold() == (self.origin.table or "").casefold():
                return 'select * from "' + name.replace('"', '""') + '"'
        raise SourceError(f"{self.origin.path} has no table {self.origin.table!r}; its tables: {listed(known) or 'none'}")


def _pickled(file: IO[bytes]) -> Iterator[list[tuple[Any, ...]]]:
    """Batches of rows from ``file``, which this process has just written."""
    with suppress(EOFError):
        while True:
            yield pickle.load(file)


def sqlite_tables(path: Path) -> Sequence[str]:
    """Tables and views. Raises `SourceError` for a file that cannot be read."""
    origin = Origin(str(path))
    with _open(str(path)) as connection, _failing(origin, connection):
        return _tables(connection)


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [str(row[0]) for row in connection.execute(_TABLES)]


@contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise SourceError(f"cannot open {path}: {first_line(error)}; give the path of a SQLite file that can be read") from error
    # Text that is not UTF-8 is an error of its row, not of the table.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _failing(origin: Origin, connection: sqlite3.Connection) -> Iterator[None]:
    try:
        connection.execute("begin")
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise SourceError(f"{origin.label} failed: {first_line(error)}; give a table, or one SELECT over this file") from error
