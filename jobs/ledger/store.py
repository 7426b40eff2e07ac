"""The ledger's DuckDB file: statements by name, transactions, foreign errors mapped; and its tables while no server holds it."""

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

from connectors.errors import StorageError
from jobs.folder import StateFolder

TABLES = ("jobs", "leases", "harvest", "lengths")


@cache
def statements() -> dict[str, str]:
    """Every ``-- name: NAME`` block of ``ledger.sql``."""
    text = files("jobs.ledger").joinpath("ledger.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


class Store:
    """One connection, used from one thread. Opening takes the file's lock; `StorageError` where another process holds it."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = duckdb.connect(str(path))
            self._db.execute("SET threads = 1")  # small statements: other threads would only be waited for
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            raise StorageError(f"cannot open the ledger {path}: {first}; is another server using this state folder?") from error
        self.run("schema")

    def close(self) -> None:
        self._db.close()

    def run(self, name: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
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
        return self._db.sql(f"SELECT * FROM {table}").to_arrow_table()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except duckdb.Error as error:
            self._rollback()
            raise self._mapped("commit", error) from error
        except BaseException:
            self._rollback()
            raise

    def _rollback(self) -> None:
        try:
            self._db.execute("ROLLBACK")
        except duckdb.Error:
            return  # a failed COMMIT has ended the transaction already

    def _execute(self, name: str, values: Sequence[object]) -> Any:
        try:
            return self._db.execute(statements()[name], list(values))
        except duckdb.Error as error:
            raise self._mapped(name, error) from error

    def _mapped(self, name: str, error: duckdb.Error) -> StorageError:
        first = str(error).splitlines()[0]
        return StorageError(f"the ledger cannot be written or read ({name}): {first}; check the disk of the state folder")


def read_ledger(state_dir: Path, table: str) -> pa.Table | None:
    """All rows of one table, or None where the state folder has no ledger yet.

    Opens the file read-only and closes it again. Raises `StorageError` where another process holds it: a running server does.
    """
    path = StateFolder(state_dir).ledger
    if not path.exists():
        return None
    try:
        with duckdb.connect(str(path), read_only=True) as ledger:
            return ledger.sql(f"SELECT * FROM {table}").to_arrow_table()
    except duckdb.CatalogException:
        return None  # its server died before it made the tables
    except duckdb.IOException as error:
        if "lock" in str(error):
            raise StorageError(
                f"the ledger {path} is held by a running server that did not answer; give its address with --url, or stop it"
            ) from error
        raise StorageError(f"cannot read the ledger {path}: {str(error).splitlines()[0]}") from error
    except duckdb.Error as error:
        raise StorageError(f"cannot read the ledger {path}: {str(error).splitlines()[0]}") from error
