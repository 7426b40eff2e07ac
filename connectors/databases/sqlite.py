"""A table or query of a SQLite file, read with Python's own SQLite: no extension to install."""

from __future__ import annotations

import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pyarrow as pa

from connectors.base import check_unique, listed
from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows, too_large
from connectors.copied.widen import Columns, batch_of
from connectors.databases.duckdb import stats_digest
from connectors.databases.stall import moving
from connectors.edge import first_line
from connectors.errors import SourceError
from connectors.paths.names import source_name

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20
MAX_VALUE_BYTES = 256 << 20  # of one cell
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

    Rows are kept in a temporary file until all are seen: a query that runs again may give other rows. Of ``max_rows`` the others count for
    the types alone. Rows of more than ``max_bytes`` in Arrow raise `CopyTooLargeError` as soon as that is certain.
    """

    def __init__(self, origin: Origin, max_bytes: int | None = None, max_rows: int | None = None) -> None:
        self.origin = origin
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self.name = source_name(origin.table or "", Path(origin.path).stem)

    def fingerprint(self) -> str | None:
        return stats_digest(self.origin, "-wal")

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with (
            _open(self.origin.path) as connection,
            _failing(self.origin, connection),
            tempfile.TemporaryFile(prefix="harvester-sqlite-") as kept,
        ):
            with moving(connection.interrupt, self.origin.label, sees_reads=False) as moved:
                schema = self._keep(connection, kept, moved)
            kept.seek(0)
            yield schema, (batch_of(schema, [dict(zip(schema.names, row, strict=True)) for row in rows]) for rows in _pickled(kept))

    def _keep(self, connection: sqlite3.Connection, kept: IO[bytes], moved: Callable[[], None]) -> pa.Schema:
        """Write the rows to ``kept``, a list at a time. Returns their columns."""
        sql = self._select_all(connection) if self.origin.query is None else self.origin.query
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
        cursor = connection.execute(sql)
        if cursor.description is None:
            raise SourceError(f"{self.origin.label} must be one SELECT; given: {' '.join(sql.split())[:80]!r}")
        names = [str(column[0]) for column in cursor.description]
        check_unique(names, self.origin.label)
        columns = Columns(self.origin.label, names)
        kept_rows = kept_bytes = 0
        for rows, rows_bytes in _lists(cursor):
            moved()
            for row in rows:
                columns.see(dict(zip(names, row, strict=True)))
            if self._max_rows is not None and kept_rows + len(rows) > self._max_rows:
                rows = rows[: self._max_rows - kept_rows]
                rows_bytes = sum(map(_bytes_of, rows))
            kept_rows, kept_bytes = kept_rows + len(rows), kept_bytes + rows_bytes
            if self._max_bytes is not None and kept_bytes > self._max_bytes:
                raise too_large(self.origin, self._max_bytes)
            if rows:
                pickle.dump(rows, kept)
        return columns.schema

    def _select_all(self, connection: sqlite3.Connection) -> str:
        known = _tables(connection)
        for name in known:
            if name.casefold() == (self.origin.table or "").casefold():
                return 'select * from "' + name.replace('"', '""') + '"'
        raise SourceError(f"{self.origin.path} has no table {self.origin.table!r}; its tables: {listed(known) or 'none'}")


def _lists(cursor: sqlite3.Cursor) -> Iterator[tuple[list[tuple[Any, ...]], int]]:
    """Rows, up to 1,024 or about 8 MiB of them, and how many bytes they take at least in Arrow."""
    rows: list[tuple[Any, ...]] = []
    rows_bytes = 0
    for row in cursor:
        rows.append(row)
        rows_bytes += _bytes_of(row)
        if len(rows) >= BATCH_ROWS or rows_bytes >= BATCH_BYTES:
            yield rows, rows_bytes
            rows, rows_bytes = [], 0
    if rows:
        yield rows, rows_bytes


def _bytes_of(row: tuple[Any, ...]) -> int:
    return sum(4 + (len(value) if isinstance(value, str | bytes) else 0) for value in row)


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
