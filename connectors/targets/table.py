"""A table of a DuckDB file that grows part by part; rows and the note of their part are one transaction."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.base import Closing
from connectors.durable import storage_error
from connectors.edge import first_line
from connectors.errors import StorageError
from connectors.kinds import for_duckdb
from connectors.parquet.parts import Part
from connectors.targets.rounding import first_change, give_types

PARTS_AT_ONCE = 64  # per transaction
PATIENCE_S = 60.0  # for another process to close the file
_POLL_S = 0.25
_NOTES = "harvester_parts"
_NOT_TAKEN = (
    duckdb.BinderException,
    duckdb.ConversionException,
    duckdb.CatalogException,
    duckdb.ConstraintException,
    duckdb.DependencyException,  # a column of a table with an index cannot be given a type
)
_CREATE_NOTES = f"""
    CREATE TABLE IF NOT EXISTS {_NOTES} (
        table_name VARCHAR, job VARCHAR, part VARCHAR, edition VARCHAR, rows BIGINT, PRIMARY KEY (table_name, job, part)
    )
"""


class TableCopy(Closing):
    """A `Target`. The table has the columns of the results after ``job_id``, so that several jobs may share it.

    The file is open for the moment of a transaction only: anyone may read it in between. The table ``harvester_parts`` of the same file
    says which parts are in.
    """

    def __init__(
        self, path: Path, table: str, job: str, *, patience_s: float = PATIENCE_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = path
        self._schema, _, self._table = table.rpartition(".")
        self._job = job
        self._patience_s = patience_s
        self._sleep = sleep
        self._key = f"{self._schema or 'main'}.{self._table}".lower()
        self._rows = 0
        self._editions: dict[str, str] | None = None  # after the last `update`; None before the first

    def update(self, parts: Sequence[Part], *, is_final: bool) -> int:
        if self._editions is not None and not is_final and all(self._editions.get(part.name) == part.edition for part in parts):
            return self._rows
        while True:
            with self._transaction() as connection:
                self._editions = self._held(connection)
                new = [part for part in parts if self._editions.get(part.name) != part.edition]
                for part in new[:PARTS_AT_ONCE]:
                    self._take(connection, part)
                    self._editions[part.name] = part.edition
                self._rows = _one(connection, f"SELECT coalesce(sum(rows), 0) FROM {_NOTES} WHERE table_name = ? AND job = ?", self._about)
            if len(new) <= PARTS_AT_ONCE:
                return self._rows

    @property
    def _about(self) -> list[str]:
        return [self._key, self._job]

    def _held(self, connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
        """Editions by part. A table that was dropped holds none."""
        connection.execute(_CREATE_NOTES)
        if not self._is_there(connection):
            connection.execute(f"DELETE FROM {_NOTES} WHERE table_name = ?", [self._key])
        found = connection.execute(f"SELECT part, edition FROM {_NOTES} WHERE table_name = ? AND job = ?", self._about).fetchall()
        return {str(part): str(edition) for part, edition in found}

    def _is_there(self, connection: duckdb.DuckDBPyConnection) -> bool:
        sql = (
            "SELECT count(*) FROM duckdb_tables() WHERE database_name = current_database() AND lower(schema_name || '.' || table_name) = ?"
        )
        return _one(connection, sql, [self._key]) > 0

    def _schema_in(self, connection: duckdb.DuckDBPyConnection) -> str:
        """The schema with the database's name before it, because both may have the same one."""
        ((database,),) = connection.execute("SELECT current_database()").fetchall()
        return f"{_quoted(database)}.{_quoted(self._schema or 'main')}"

    def _take(self, connection: duckdb.DuckDBPyConnection, part: Part) -> None:
        table = _readable(part.read())
        schema = self._schema_in(connection)
        name = f"{schema}.{_quoted(self._table)}"
        label = "job_id"
        while label in {name.lower() for name in table.schema.names}:
            label = f"_{label}"
        connection.register("part", table)
        try:
            rows = f"SELECT ?::VARCHAR AS {label}, * FROM part"
            if not self._is_there(connection):
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                connection.execute(f"CREATE TABLE {name} AS {rows} LIMIT 0", [self._job])
            else:
                give_types(connection, "SELECT * FROM part", name)
                if (change := first_change(connection, "SELECT * FROM part", name)) is not None:
                    raise self._refused(str(change), "give the column a type that holds both, or name another table")
            if self._editions and part.name in self._editions:
                connection.execute(f"DELETE FROM {name} WHERE {label} = ? AND row_id IN (SELECT row_id FROM part)", [self._job])
            connection.execute(f"INSERT INTO {name} BY NAME {rows}", [self._job])
            note = [*self._about, part.name, part.edition, table.num_rows]
            connection.execute(f"INSERT OR REPLACE INTO {_NOTES} VALUES (?, ?, ?, ?, ?)", note)
        finally:
            with suppress(duckdb.Error):  # after a failed statement the transaction takes no other
                connection.unregister("part")

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = self._open()
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
        except _NOT_TAKEN as error:
            raise self._refused(first_line(error)) from error
        except duckdb.Error as error:
            raise StorageError(f"cannot write {self._path}: {first_line(error)}; check the file and its disk") from error
        finally:
            connection.close()  # rolls back what was not committed

    def _refused(self, why: str, cure: str = "name another table") -> StorageError:
        return StorageError(f"table {self._table} of {self._path} does not take the results of job {self._job}: {why}; {cure}")

    def _open(self) -> duckdb.DuckDBPyConnection:
        waited_s = 0.0
        while True:
            try:
                self._make()
                return duckdb.connect(self._path, config={"python_enable_replacements": "false"})
            except duckdb.Error as error:
                if "Could not set lock" not in str(error) or waited_s >= self._patience_s:
                    raise self._cannot_open(error) from error
            except OSError as error:
                raise storage_error("write", self._path, error) from error
            self._sleep(_POLL_S)
            waited_s += _POLL_S

    def _make(self) -> None:
        """Make a missing file under a temporary name, then link it: a maker that is killed leaves no broken database behind."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            return
        new = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        # Another process may have made it, or the file system has no links. A real problem shows when DuckDB opens the path.
        with suppress(OSError, duckdb.Error):
            duckdb.connect(new).close()
            os.link(new, self._path)
        with suppress(OSError):
            new.unlink()

    def _cannot_open(self, error: duckdb.Error) -> StorageError:
        if "Could not set lock" not in str(error):
            return StorageError(f"cannot open {self._path}: {first_line(error)}; give a DuckDB file, or the name of a new one")
        process = re.search(r"\(PID [0-9]+\)", str(error))
        who = f"another process {process[0]}" if process else "another process"
        return StorageError(f"{self._path} is open in {who}; close it there and run this again: it goes on where it was")


def _readable(table: pa.Table) -> pa.Table:
    """The table with types that DuckDB reads."""
    return table.cast(pa.schema([field.with_type(for_duckdb(field.type)) for field in table.schema]))


def _one(connection: duckdb.DuckDBPyConnection, sql: str, values: list[Any]) -> int:
    return int(connection.execute(sql, values).fetchall()[0][0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
