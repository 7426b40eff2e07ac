"""The ledger in one SQLite file of the state folder, with a write-ahead log that is synced with each change.

Beside it lie checksums of its pages and a count of its changes.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from connectors.edge import first_line
from connectors.errors import DamageError, StorageError
from jobs.ledger.store.commits import CommitCount
from jobs.ledger.store.connection import LastingConnection
from jobs.ledger.store.contract import COMMITS, GO_ON, check_count, check_version, is_change, is_in_memory, refused, unwritable
from jobs.ledger.store.statements import SCHEMA_VERSION, SQLITE, columns, definitions, statements, table_of
from jobs.ledger.store.sums import PageSums

log = logging.getLogger("harvester.ledger")

BUSY_S = 5.0  # for another process in the middle of a change
CHECK_S = 2.0  # longest look into a file whose pages have no sums
CHECKPOINT_COMMITS = 256
_NEEDED = (3, 37)  # STRICT tables
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class SqliteStore:
    """`jobs.ledger.store.contract.Store` at ``path``, or in memory where that begins with ``:memory:`` (shared by name within the process).

    Raises `DamageError` for a file that is damaged or lacks changes; with ``count_missing`` False, for `harvester repair`, missing changes
    are accepted.
    """

    def __init__(self, path: Path, *, count_missing: bool = True) -> None:
        self.path, self.name = path, str(path)
        self._changing = False
        self._syncs = True  # with each change
        self._refused: StorageError | None = None
        self._file = None if is_in_memory(path) else CommitCount(path.with_suffix(COMMITS))
        self._sums = None if is_in_memory(path) else PageSums(path)
        if self._sums is not None:
            _check_pages(path, self._sums)
        self._db = _connected(path)
        try:
            self._count, self._epoch = self._own(count_missing)
            self._checkpoint_at = self._count + CHECKPOINT_COMMITS
        except sqlite3.Error as error:
            self._disconnect(is_whole=False)
            raise _unopened(path, error) from error
        except BaseException:
            self._disconnect(is_whole=False)
            raise

    def _own(self, count_missing: bool) -> tuple[int, int]:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0", "cell_size_check = ON"):
            self._db.execute(f"PRAGMA {pragma}")
        if self._sums is not None and not self._sums.known():
            _quick_check(self.path, self._db)
            self._sums.take()
        self._db.execute("BEGIN IMMEDIATE")
        for statement in definitions(SQLITE, " STRICT"):
            self._db.execute(statement)
        self._execute("first_epoch", [SCHEMA_VERSION])
        ((version, epoch, count, _),) = self._execute("owned").fetchall()
        check_version(self.name, version)
        if self._file is not None and count_missing:
            check_count(self.path, count, self._file.read())
        self._execute("own", [None])
        self._db.execute("COMMIT")
        return count, epoch + 1

    def close(self) -> None:
        is_synced = self._sums is not None and self._checkpoint(self._sums)
        self._disconnect(is_whole=True)
        if self._file is not None:
            if is_synced and self._refused is None:
                self._file.write(self._count)
            self._file.close()

    def run(self, name: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if self._changing or not is_change(statements()[name]):
            return list(self._execute(name, values).fetchall())
        with self.transaction():
            return list(self._execute(name, values).fetchall())

    def many(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        try:
            self._db.executemany(statements()[name], rows)
        except sqlite3.Error as error:
            raise self._mapped(name, error) from error

    def rows(self, name: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        cursor = self._execute(name, values)
        names = [item[0] for item in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrow(self, table: str, without: tuple[str, ...] = ()) -> pa.Table:
        try:
            return _table(self._db, table, without)
        except sqlite3.Error as error:
            raise self._mapped(table, error) from error

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        self._begin(durable)
        self._changing = True
        try:
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback()
            raise self._mapped("commit", error) from error
        except BaseException:
            self._rollback()
            raise
        finally:
            self._changing = False
        self._count += 1
        if durable and self._file is not None and self._sums is not None:
            self._file.write(self._count)
            if self._count >= self._checkpoint_at:
                self._checkpoint(self._sums)
                self._checkpoint_at = self._count + CHECKPOINT_COMMITS

    def _begin(self, durable: bool) -> None:
        if self._refused is not None:
            raise self._refused.with_traceback(None)
        try:
            if durable is not self._syncs:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._syncs = durable
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(statements()["count_commit"], [self._epoch, self._count])
        except sqlite3.IntegrityError as error:
            self._rollback()
            found = self._execute("owned").fetchall()
            self._refused = refused(self.name, self._epoch, self._count, found[0][1:3] if found else None)
            raise self._refused from error
        except sqlite3.Error as error:
            self._rollback()
            raise self._mapped("count_commit", error) from error

    def missing(self) -> int | None:
        told = None if self._file is None else self._file.read()
        return None if told is None else max(0, told - self._count)

    def confirm(self) -> None:
        if self._file is not None:
            self._file.write(self._count)

    def _checkpoint(self, sums: PageSums) -> bool:
        """Sync the log and copy it into the file. Where that fails (False), the log just grows."""
        try:
            sums.around(lambda: self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").close())
        except (sqlite3.Error, OSError) as error:
            log.warning("ledger_checkpoint %s: %s", self.name, first_line(error))
            return False
        return True

    def _disconnect(self, *, is_whole: bool) -> None:
        """Close the connection, by which SQLite may copy the log into the file. Where the sums cannot be written, it stays open.

        ``is_whole``: the file is known to be, so the copied pages are summed.
        """
        try:
            if self._sums is None:
                self._db.close()
            elif is_whole:
                self._sums.around(self._db.close)
            else:
                self._sums.forget_before(self._db.close)
        except OSError as error:
            log.warning("ledger_sums %s: %s", self.name, first_line(error))

    def _rollback(self) -> None:
        with suppress(sqlite3.Error):  # a failed COMMIT may have ended the transaction already
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _execute(self, name: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statements()[name], values)
        except sqlite3.Error as error:
            raise self._mapped(name, error) from error
        except OverflowError as error:
            raise unwritable(name, first_line(error)) from error

    def _mapped(self, name: str, error: sqlite3.Error) -> StorageError:
        return damaged(self.name, first_line(error)) if _is_damage(error) else unwritable(name, first_line(error))


def read_sqlite(path: Path, table: str) -> pa.Table | None:
    """All rows of one table, while a server holds the file too; None where there is none yet. Changes nothing."""
    told = CommitCount(path.with_suffix(COMMITS)).read()
    if not path.exists():
        check_count(path, 0, told)
        return None
    _check_pages(path, PageSums(path))
    try:
        with closing(_read_only(path)) as ledger:
            ledger.execute("BEGIN")
            ((version, count),) = ledger.execute("SELECT schema_version, commits FROM ledger").fetchall()
            check_version(str(path), version)
            check_count(path, count, told)
            return _table(ledger, table)
    except sqlite3.Error as error:
        if "no such table" in str(error):  # its server died before it made the tables
            check_count(path, 0, told)
            return None
        raise _unopened(path, error) from error


def check_sqlite(path: Path) -> None:
    """Raise `DamageError` where the ledger is damaged or lacks changes. Its owner may be at work."""
    read_sqlite(path, "harvest")


def damaged(name: str, cause: str) -> DamageError:
    return DamageError(f"the ledger {name} is damaged: {cause[:200]}; {GO_ON}")


def _table(db: sqlite3.Connection, table: str, without: tuple[str, ...] = ()) -> pa.Table:
    names = ", ".join(f'"{name}"' for name in columns(table, without).names)
    return table_of(table, db.execute(f"SELECT {names} FROM {table}").fetchall(), without)


def _connected(path: Path) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _NEEDED:
        raise StorageError(f"the ledger needs SQLite 3.37 or newer, this Python has {sqlite3.sqlite_version}; use another Python")
    where, name = str(path), path.name.removeprefix(":memory:")
    if is_in_memory(path):
        where = f"file:{quote(name)}?mode=memory&cache=shared" if name else ":memory:"
    kind = sqlite3.Connection if is_in_memory(path) else LastingConnection
    options: dict[str, Any] = {"check_same_thread": False, "uri": where.startswith("file:"), "factory": kind}
    try:
        db: sqlite3.Connection = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, **options)
    except sqlite3.Error as error:
        raise _unopened(path, error) from error
    return db


def _read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection. Without a log, no file beside the ledger is made or changed."""
    wal = path.with_name(path.name + "-wal")
    still = "" if wal.exists() and wal.stat().st_size else "&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro{still}", timeout=BUSY_S, isolation_level=None, uri=True)


def _check_pages(path: Path, sums: PageSums) -> None:
    try:
        page = sums.damaged() if path.exists() else None
    except OSError as error:
        raise StorageError(
            f"cannot open the ledger {path}: {(error.strerror or '').lower()}; check the disk and the rights there"
        ) from error
    if page is not None:
        raise damaged(str(path), f"page {page} is not as it was written")


def _quick_check(path: Path, db: sqlite3.Connection) -> None:
    """SQLite's own check of the page structure; given up after `CHECK_S`."""
    end_s = time.monotonic() + CHECK_S
    db.set_progress_handler(lambda: time.monotonic() > end_s, 10_000)
    try:
        told = db.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        told = [("ok",)]
    finally:
        db.set_progress_handler(None, 0)
    if told != [("ok",)]:
        raise damaged(str(path), " ".join(str(told[0][0]).split()))


def _is_damage(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", None) or "").startswith(_DAMAGE)


def _unopened(path: Path, error: sqlite3.Error) -> StorageError:
    kind = getattr(error, "sqlite_errorname", None) or ""
    if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StorageError(f"another process holds the ledger {path}, a server most likely; stop it with: harvester stop")
    if _is_damage(error):
        return damaged(str(path), first_line(error))
    return StorageError(f"cannot open the ledger {path}: {first_line(error)}; check the disk and the rights of the state folder")
