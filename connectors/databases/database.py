"""A DuckDB file, opened to be read: its tables, and the rows of one table or query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.base import listed
from connectors.copied.source import Rows, temporary_folder
from connectors.databases.exact import exactly
from connectors.databases.shape import fault, tokens
from connectors.databases.stall import moving
from connectors.edge import first_line, shown
from connectors.errors import SourceError

BATCH_ROWS = 2048  # DuckDB's own vector length

# A query may read this file only: no other file, no network, no Python variable. DuckDB requires the same configuration from all
# who open a file in one process, so it is fixed here. Above the memory limit a sort or join spills to disk.
Settings = dict[str, str | bool | int | float | list[str]]  # of DuckDB

_CONFIG: Settings = {"enable_external_access": "false", "memory_limit": "2GB"}
# ATTACH needs access to a file, network or extension; the query that comes after it does not.
_ATTACH_CONFIG: Settings = {"memory_limit": "2GB", "python_enable_replacements": "false"}
_ATTACHED_CONFIG = ("set enable_external_access = false", "set lock_configuration = true")
_EXACT = "pg_numeric_as_varchar"  # of Postgres: `numeric` without precision, or with more than 38 digits
_TABLES = """
    select schema_name, table_name from duckdb_tables() where not internal and database_name = current_database()
    union all
    select schema_name, view_name from duckdb_views() where not internal and database_name = current_database()
    order by all
"""


class Database:
    """A read-only connection. While it is open nobody can write to the file, so keep it short."""

    def __init__(self, path: Path, connection: Any) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Database]:
        """Raises `SourceError` for a file that is not there, is not DuckDB's, or is being written to."""
        if not path.exists():
            raise SourceError(f"{path} does not exist; give the path of a DuckDB file")
        try:
            connection = duckdb.connect(path, read_only=True, config=_CONFIG)
        except duckdb.Error as error:
            raise _cannot_open(path, error) from error
        try:
            yield cls(path, connection)
        finally:
            connection.close()

    @classmethod
    @contextmanager
    def attach(cls, address: str, scratch: Path | None = None, *, exact: bool = False) -> Iterator[Database]:
        """Attach a database that DuckDB's ATTACH takes, read-only. Its queries can reach no other file.

        ``scratch``: folder for what a query writes beyond its memory; None: the system's temporary folder.
        ``exact``: numbers that no decimal of DuckDB holds are text, where the extension offers it; else doubles, as queries calculate with.

        Raises `SourceError`, also for an extension that is not installed here.
        """
        with temporary_folder(scratch) as spill, duckdb.connect(config={**_ATTACH_CONFIG, "temp_directory": spill}) as connection:
            try:
                quoted = address.replace("'", "''")
                # The prefix mysql: tells DuckDB the type; the database's own form of address (mysql://) does not.
                kind = next(
                    (f", type {kind}" for kind in ("postgres", "mysql") if re.match(rf"{kind}(ql)?://", address, re.IGNORECASE)), ""
                )
                connection.execute(f"attach '{quoted}' as origin (read_only{kind})")
                connection.execute("use origin")
                for setting in (*_exact_numbers(connection, exact), *_ATTACHED_CONFIG):
                    connection.execute(setting)
                yield cls(Path(shown(address)), connection)
            except duckdb.Error as error:
                raise _cannot_attach(address, error) from error

    def tables(self) -> list[str]:
        """Tables and views, those outside the schema ``main`` as ``schema.table``."""
        return [_shown(schema, table) for schema, table in self._found()]

    @contextmanager
    def rows(self, table: str | None, query: str | None) -> Iterator[Rows]:
        """Columns and rows of a table or of a query, as a stream. Raises `SourceError`, also while the stream is read."""
        sql = self._select_all(table) if table is not None else self._checked(query or "")
        what = f"table {table!r} of {self._path}" if table is not None else f"the query on {self._path}"
        with moving(self._connection.interrupt, what, sees_reads=False) as moved:
            with self._failing(what):
                reader = exactly(self._connection.sql(sql)).to_arrow_reader(BATCH_ROWS)
            yield reader.schema, self._batches(reader, what, moved)

    def _batches(self, reader: Any, what: str, moved: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        while True:
            with self._failing(what):
                batch = next(reader, None)
            if batch is None:
                return
            moved()
            yield batch

    def _found(self) -> list[tuple[str, str]]:
        try:
            return [(str(schema), str(table)) for schema, table in self._connection.sql(_TABLES).fetchall()]
        except duckdb.Error as error:
            raise _cannot_open(self._path, error) from error

    def _select_all(self, table: str) -> str:
        for schema, name in self._found():
            if table.casefold() in (_shown(schema, name).casefold(), f"{schema}.{name}".casefold()):
                # With the database's own name, because a schema may have the same one.
                return f"select * from {_quoted(self._name())}.{_quoted(schema)}.{_quoted(name)}"
        raise SourceError(f"{self._path} has no table {table!r}; its tables: {self._listed()}")

    def _name(self) -> str:
        ((name,),) = self._connection.sql("select current_database()").fetchall()
        return str(name)

    def _checked(self, query: str) -> str:
        too_much = fault(tokens(query))
        if too_much is not None:
            raise SourceError(f"{too_much}; given for {self._path}")
        with self._failing(f"the query on {self._path}"):
            statements = self._connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise SourceError(f"the query on {self._path} must be one SELECT; given: {' '.join(query.split())[:80]!r}")
        return query

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow's, if DuckDB fails in mid-stream
            raise SourceError(f"{what} failed: {first_line(error)}; tables of the file: {self._listed()}") from error

    def _listed(self) -> str:
        try:
            return listed(self.tables()) or "none"
        except SourceError:
            return "not known after this failure"


def _exact_numbers(connection: Any, exact: bool) -> list[str]:
    """The settings for exact numbers that the extension of an attached database knows."""
    known = connection.execute("select name from duckdb_settings() where name = $1", [_EXACT]).fetchall() if exact else []
    return [f"set {name} = true" for (name,) in known]


def _cannot_open(path: Path, error: duckdb.Error) -> SourceError:
    message = str(error)
    if "Could not set lock" in message:
        process = re.search(r"\(PID [0-9]+\)", message)
        who = f"another process {process[0]}" if process else "another process"
        return SourceError(f"{path} is open for writing in {who}; close it there, or submit a copy of the file")
    if "different configuration" in message:
        return SourceError(f"{path} is open in this same process with other settings; close it there, or submit a copy of the file")
    return SourceError(f"cannot open {path}: {first_line(error)}; give the path of a DuckDB file that can be read")


def _cannot_attach(address: str, error: duckdb.Error) -> SourceError:
    message = str(error)
    extension = re.search(r'extension "(\w+)"', message)
    if "Failed to download" in message and extension:
        return SourceError(
            f"{shown(address)} needs DuckDB's extension {extension[1]}, which is not installed; once, where the server runs: "
            f"python -c \"import duckdb; duckdb.sql('install {extension[1]}')\""
        )
    return SourceError(f"cannot attach {shown(address)}: {shown(first_line(error))}; give what DuckDB's ATTACH takes")


def _shown(schema: str, table: str) -> str:
    return table if schema == "main" else f"{schema}.{table}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
