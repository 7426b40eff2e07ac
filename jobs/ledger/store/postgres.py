"""The ledger in a PostgreSQL database, in a schema of its own: for a cluster, where the owner may start again on any node."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from connectors.edge import first_line
from connectors.errors import StorageError
from jobs.errors import ReopenError
from jobs.ledger.store.contract import check_version, is_change, refused, taken_over, unwritable
from jobs.ledger.store.statements import POSTGRES, SCHEMA_VERSION, columns, definitions, statements, table_of

logging.getLogger("psycopg").setLevel(logging.ERROR)  # it tells of a broken connection beside the error that it raises

SCHEMA = "harvester"
TAKE_OVER_S = 20
_LOCK = int.from_bytes(hashlib.sha256(b"harvester ledger").digest()[:4], "big") >> 1
# A node that is gone is noticed within 20 s by the database, which then frees its lock; a stopped owner holds no row longer than 10 s.
_SETTINGS = f"""
SET search_path = {SCHEMA};
SET synchronous_commit = on;
SET idle_in_transaction_session_timeout = '10s';
SET lock_timeout = '{TAKE_OVER_S}s';
SET tcp_keepalives_idle = 5;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3
"""
_CONNECT: dict[str, Any] = {"connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
_CONNECT["target_session_attrs"] = "read-write"  # of several hosts the one that writes: a standby may lag behind
_CONNECT["tcp_user_timeout"] = TAKE_OVER_S * 1000  # ms; keepalives do not end a wait for what was sent and never arrived
_HOLDERS = (  # of this database: the view shows the locks of all
    "FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database WHERE datname = current_database() "
    "AND locktype = 'advisory' AND objid = %s AND granted AND pid <> pg_backend_pid()"
)


class PostgresStore:
    """`jobs.ledger.store.contract.Store` in the database at ``url``, which messages call ``name``.

    A server with the same ``owner`` is replaced, whether it lives, hangs or is gone; a living one with another ``owner`` is not, which
    raises `StorageError`. Where the connection breaks, changes fail with `ReopenError`: it is unknown whether the last change was made, so
    the caller opens another store with ``reopens`` and reads everything again. That raises `OwnerError` where another ``opener`` has the
    ledger by then.
    """

    def __init__(self, url: str, owner: str, name: str, *, opener: str = "", reopens: bool = False) -> None:
        self.name = name
        self._url = url
        self._changing = False
        self._refused: StorageError | None = None
        self._silence, self._look_at_s = "", 0.0  # what was said when nobody answered, and when the next look may be
        self._db = _connected(url, name)
        try:
            if not reopens:
                self._check_session()
            self._count, self._epoch = self._own(owner, opener, reopens)
        except psycopg.Error as error:
            self._db.close()
            raise _unanswered(name, error) from error
        except BaseException:
            self._db.close()
            raise

    def _check_session(self) -> None:
        """Raise `StorageError` behind a pooler that gives each statement a session of its own: locks and settings belong to one.

        Such a pooler shows two connections in one session, or one in two.
        """
        try:
            with closing(_connected(self._url, self.name)) as other:
                first, beside, last = (db.execute("SELECT pg_backend_pid()").fetchone() for db in (self._db, other, self._db))
        except (psycopg.Error, StorageError):  # one connection is all that may be had
            return
        if first == beside or first != last:
            raise StorageError(
                f"a pooler before the ledger {self.name} shares its sessions; set its pool_mode to session, or name the database itself"
            )

    def _own(self, owner: str, opener: str, reopens: bool) -> tuple[int, int]:
        if self._db.execute("SELECT to_regnamespace(%s)", [SCHEMA]).fetchone() == (None,):
            self._db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
        self._lock(owner, opener, reopens)
        with self._db.transaction():
            for statement in definitions(POSTGRES):
                self._db.execute(statement.encode())
            self._db.execute(_text("first_epoch"), [SCHEMA_VERSION])
            if reopens:  # another may have opened it before this one had the lock
                self._check_opener(opener, self._db.execute(_text("owned")).fetchone())
            self._db.execute(_text("own"), [f"{owner}#{opener}"])
            ((version, epoch, count, _),) = self._db.execute(_text("owned")).fetchall()
            check_version(self.name, version)
        return count, epoch

    def _lock(self, owner: str, opener: str, reopens: bool) -> None:
        """The lock says that an owner is connected, no more: what keeps an earlier owner from writing is the epoch."""
        if self._db.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() == (True,):
            return
        there = self._db.execute("SELECT to_regclass('ledger')").fetchone() != (None,)
        found = self._db.execute(_text("owned")).fetchone() if there else None
        if found is None or str(found[3]).partition("#")[0] != owner:
            raise StorageError(
                f"the ledger {self.name} is in use by the server of another state folder; stop that one, or give each its own database"
            )
        if reopens:
            self._check_opener(opener, found)
        self._db.execute(f"SELECT pg_terminate_backend(pid) {_HOLDERS}", [_LOCK])
        self._db.execute("SELECT pg_advisory_lock(%s)", [_LOCK])

    def _check_opener(self, opener: str, found: tuple[Any, ...] | None) -> None:
        if found is None or str(found[3]).partition("#")[2] != opener:
            raise taken_over(self.name)

    def close(self) -> None:
        self._db.close()

    def run(self, name: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if self._changing or not is_change(statements()[name]):
            return self._execute(name, values)
        with self.transaction():
            return self._execute(name, values)

    def many(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        with self._mapped(name), self._db.cursor() as cursor:
            cursor.executemany(_text(name), [_values(row) for row in rows])

    def rows(self, name: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        with self._mapped(name):
            cursor = self._db.execute(_text(name), _values(values))
            names = [item[0] for item in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrow(self, table: str, without: tuple[str, ...] = ()) -> pa.Table:
        with self._mapped(table):
            return _table(self._db, table, without)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Statements without rows are sent together, so that a change is one or two round trips. All are durable."""
        if self._refused is not None:
            raise self._refused.with_traceback(None)
        self._changing = True
        try:
            with self._mapped("commit"), self._db.pipeline():
                self._db.execute("BEGIN")
                self._db.execute(_text("count_commit"), [self._epoch, self._count])
                yield
                self._db.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise
        finally:
            self._changing = False
        self._count += 1

    def _rollback(self) -> None:
        if not self._db.closed and self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            with self._mapped("rollback"):
                self._db.execute("ROLLBACK")

    def missing(self) -> int | None:
        """Always 0: changes of a database are not counted beside it."""
        return 0

    def confirm(self) -> None:
        return

    def _execute(self, name: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Rows are waited for only where the statement gives some."""
        with self._mapped(name):
            cursor = self._db.execute(_text(name), _values(values))
            gives = statements()[name].startswith("SELECT") or "RETURNING" in statements()[name]
            return list(cursor.fetchall()) if gives else []

    @contextmanager
    def _mapped(self, name: str) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.NotNullViolation as error:
            if "epoch" not in str(error):
                raise unwritable(name, first_line(error)) from error
            raise self._look(error) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:  # it is a standby now; another one writes
            self._db.close()
            raise self._look(error) from error
        except psycopg.Error as error:
            raise (self._look(error) if self._db.closed else unwritable(name, first_line(error))) from error

    def _look(self, error: psycopg.Error) -> StorageError:
        """The error to raise, by who owns the ledger now. Asks over another connection: this one is broken or in a failed transaction.

        If nobody answers, callers get the same for as long as that took: they stand in line, and each would wait for it again.
        """
        began_s = time.monotonic()
        if began_s < self._look_at_s:
            return StorageError(self._silence)
        try:
            with closing(_connected(self._url, self.name)) as db:
                found = db.execute(_text("owned")).fetchone()
        except (psycopg.Error, StorageError):
            ended_s = time.monotonic()
            silent = _unanswered(self.name, error)
            self._silence, self._look_at_s = silent.message, 2 * ended_s - began_s
            return silent
        now = None if found is None else (found[1], found[2])
        if now is not None and now[0] == self._epoch and now[1] in (self._count, self._count + 1) and self._db.closed:
            self._refused = ReopenError(f"the connection to the ledger {self.name} broke: {first_line(error)}; it is opened again")
        else:
            self._refused = refused(self.name, self._epoch, self._count, now)
        return self._refused


def read_postgres(url: str, name: str, table: str) -> pa.Table | None:
    """All rows of one table; None where there is no ledger yet. Raises `StorageError`."""
    with closing(_connected(url, name)) as db:
        try:
            if db.execute("SELECT to_regclass('ledger')").fetchone() == (None,):
                return None
            ((version, *_),) = db.execute(_text("owned")).fetchall()
            check_version(name, version)
            return _table(db, table)
        except psycopg.Error as error:
            raise _unanswered(name, error) from error


def _connected(url: str, name: str) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        db = psycopg.connect(url, autocommit=True, application_name="harvester", **_CONNECT)
        db.execute(_SETTINGS.encode())
    except psycopg.Error as error:
        raise _unanswered(name, error) from error
    return db


def _table(db: psycopg.Connection[tuple[Any, ...]], table: str, without: tuple[str, ...] = ()) -> pa.Table:
    names = sql.SQL(", ").join(sql.Identifier(name) for name in columns(table, without).names)
    rows = db.execute(sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(table))).fetchall()
    return table_of(table, rows, without)


def _text(name: str) -> bytes:
    return statements()[name].replace("?", "%s").encode()


def _values(values: Sequence[object]) -> list[object]:
    """PostgreSQL's text holds no NUL."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]


def _unanswered(name: str, error: psycopg.Error) -> StorageError:
    return StorageError(f"the ledger {name} does not answer: {first_line(error)}; check the address, the rights and the database")
