"""The ledger's DuckDB file: statements by name, transactions that are counted, errors mapped; its tables while no server holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.edge import first_line
from connectors.errors import DamageError, StorageError
from jobs.folder import StateFolder
from jobs.ledger.commits import CommitCount

TABLES = ("jobs", "leases", "harvest", "lengths", "usage")
COMMITS = ".commits"  # in place of the ledger's suffix
_GO_ON = "stop the server and run: harvester repair"
_DISK = ("Permission denied", "No space left on device", "Read-only file system", "Input/output error", "Too many open files")
_DAMAGE = re.compile(r"checksum|corrupt|Serialization Error", re.IGNORECASE)


@cache
def statements() -> dict[str, str]:
    """Every ``-- name: NAME`` block of ``ledger.sql``."""
    text = files("jobs.ledger").joinpath("ledger.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


class Store:
    """One connection, used from one thread. Opening takes the file's lock; `StorageError` where another process holds it.

    Every change is counted (`jobs.ledger.commits`). A file that is damaged or lacks changes is a `DamageError`; with ``count_missing``
    False, for `harvester repair`, the second is taken as it is.
    """

    def __init__(self, path: Path, *, count_missing: bool = True) -> None:
        self.path = path
        self._changing = False
        self._file = None if is_in_memory(path) else CommitCount(path.with_suffix(COMMITS))
        try:
            self._db = duckdb.connect(str(path))
        except duckdb.Error as error:
            raise _unopened(path, error) from error
        try:
            self._db.execute("SET threads = 1")  # small statements: other threads would only be waited for
            for name in ("schema", "commit_schema", "first_commit"):
                self._execute(name)
            self._count = int(self._execute("commit_count").fetchall()[0][0])
            if self._file is not None and count_missing:
                check_count(path, self._count, self._file.read())
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()
        if self._file is not None:
            self._file.close()

    def run(self, name: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if self._changing or not statements()[name].startswith(("INSERT", "UPDATE", "DELETE")):
            return list(self._execute(name, values).fetchall())
        with self.transaction():
            return list(self._execute(name, values).fetchall())

    def rows(self, name: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        cursor = self._execute(name, values)
        names = [item[0] for item in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def insert(self, name: str, view: str, table: pa.Table, values: Sequence[object] = ()) -> None:
        """Run a statement that reads ``table`` under the name ``view``."""
        self._db.register(view, table)
        try:
            self._execute(name, values)
        finally:
            self._db.unregister(view)

    def arrow(self, table: str) -> pa.Table:
        try:
            return self._db.sql(f"SELECT * FROM {table}").to_arrow_table()
        except duckdb.Error as error:
            raise self._mapped(table, error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's changes or none; not within another."""
        self._db.execute("BEGIN")
        self._changing = True
        try:
            yield
            self._execute("count_commit", [self._count + 1])
            self._db.execute("COMMIT")
        except duckdb.Error as error:
            self._rollback()
            raise self._mapped("commit", error) from error
        except BaseException:
            self._rollback()
            raise
        finally:
            self._changing = False
        self._count += 1
        if self._file is not None:
            self._file.write(self._count)

    def missing(self) -> int | None:
        """How many changes were lost; None where nobody counted them. Raises `DamageError` where the count is damaged."""
        told = None if self._file is None else self._file.read()
        return None if told is None else max(0, told - self._count)

    def confirm(self) -> None:
        """Take the changes that are there for all that there were: after a repair."""
        if self._file is not None:
            self._file.write(self._count)

    def _rollback(self) -> None:
        try:
            self._db.execute("ROLLBACK")
        except duckdb.Error:
            return  # a failed COMMIT has ended the transaction already

    def _execute(self, name: str, values: Sequence[object] = ()) -> Any:
        try:
            return self._db.execute(statements()[name], list(values))
        except duckdb.Error as error:
            raise self._mapped(name, error) from error

    def _mapped(self, name: str, error: duckdb.Error) -> StorageError:
        if _DAMAGE.search(str(error)):
            return _damaged(self.path, error)
        return StorageError(f"the ledger cannot be written or read ({name}): {first_line(error)}; check the disk of the state folder")


def is_in_memory(path: Path) -> bool:
    return path.name.startswith(":memory:")


def check_count(path: Path, count: int, told: int | None) -> None:
    """``count``: of the ledger; ``told``: of the file beside it, None where there is none. Raises `DamageError`."""
    if told is not None and count < told:
        raise DamageError(
            f"the ledger {path} lacks its last {told - count} changes: it or its log was cut, removed or replaced by an older copy; "
            f"{_GO_ON}"
        )


def check_ledger(state_dir: Path) -> None:
    """Raise `DamageError` where the ledger is damaged or lacks changes, before anything is started on it. Other errors are its opener's."""
    try:
        Store(StateFolder(state_dir).ledger).close()
    except DamageError:
        raise
    except StorageError:
        return  # a lock that a dying process still holds: its opener waits for that


def _unopened(path: Path, error: duckdb.Error) -> StorageError:
    told = str(error)
    if "lock" in told and isinstance(error, duckdb.IOException):
        return StorageError(f"another process holds the ledger {path}, a server most likely; stop it with: harvester stop")
    cause = next((words for words in _DISK if words in told), None)
    if cause is not None:
        return StorageError(f"cannot open the ledger {path}: {cause.lower()}; check the disk and the rights of the state folder")
    return _damaged(path, error)


def _damaged(path: Path, error: duckdb.Error) -> DamageError:
    return DamageError(f"the ledger {path} is damaged: {first_line(error)[:200]}; {_GO_ON}")


def read_ledger(state_dir: Path, table: str) -> pa.Table | None:
    """All rows of one table, or None where the state folder has no ledger yet.

    Opens the file read-only and closes it again. Raises `StorageError` where another process holds it: a running server does.
    """
    path = StateFolder(state_dir).ledger
    told = CommitCount(path.with_suffix(COMMITS)).read()
    if not path.exists():
        check_count(path, 0, told)
        return None
    try:
        with duckdb.connect(str(path), read_only=True) as ledger:
            if told is not None:
                check_count(path, ledger.sql(statements()["commit_count"]).fetchall()[0][0], told)
            return ledger.sql(f"SELECT * FROM {table}").to_arrow_table()
    except duckdb.CatalogException:
        return None  # its server died before it made the tables
    except duckdb.Error as error:
        if "lock" in str(error) and isinstance(error, duckdb.IOException):
            raise StorageError(
                f"the ledger {path} is held by a running server that did not answer; give its address with --url, or stop it"
            ) from error
        raise _unopened(path, error) from error
