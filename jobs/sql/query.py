"""SQL over harvester's state: views of the ledger's tables, table macro ``results('JOB')``, and any file the user names."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.databases.exact import exactly
from connectors.databases.shape import tokens
from connectors.errors import HarvesterError, StorageError
from jobs.errors import QueryError
from jobs.ledger.store.place import read_ledger
from jobs.ledger.store.statements import TABLES, statements
from jobs.result import result_schema
from jobs.spec import JobSpec
from jobs.sql.guard import check_query
from jobs.sql.named import with_tables
from jobs.storage.folder import StateFolder
from jobs.tasks.spec import Task

BATCH_ROWS = 4096  # of a long result: bounds memory where rows are whole documents
_INTERNAL = ("key", "spec", "rows_judged", "errors_judged", "task_key", "counts")  # columns for the ledger itself

LedgerTables = Callable[[str], pa.Table | None]  # name of a table -> its rows; None where there is none

_RESULTS = """
CREATE MACRO results(job) AS TABLE SELECT * FROM read_parquet(
    coalesce(getvariable('parts')[job], [error('unknown job ' || coalesce(job, 'NULL') || getvariable('newest'))]),
    union_by_name := true, hive_partitioning := false
)
"""


@contextmanager
def connect(state_dir: Path, ledger_tables: LedgerTables | None = None, *, is_sandbox: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB database over the state folder as it is now. Parts are read in place, the ledger's tables are copied.

    ``ledger_tables`` asks a running server for the tables; None reads the ledger itself. Where that fails (a server that is starting
    holds the file), ``results`` still works, and `run` raises an error that says why ``jobs`` and ``leases`` do not.

    With ``is_sandbox`` only the parts of the jobs in ``ledger_tables`` can be read; the caller must then set limits and lock the
    configuration.
    """
    # Replacement scans are off: with them a query would see this program's variables as tables.
    config: dict[str, str | bool | int | float | list[str]] = {"python_enable_replacements": "false"}
    with tempfile.TemporaryDirectory(prefix="harvester-sql-") as scratch, duckdb.connect(config=config) as connection:
        connection.execute("SET temp_directory = $1", [str(Path(scratch, "spill"))])
        connection.execute("ATTACH ':memory:' AS ledger")
        try:
            _copy_ledger(connection, ledger_tables or (lambda table: read_ledger(state_dir, table)))
        except HarvesterError as error:
            connection.execute("SET VARIABLE ledger_error = $1", [error.message])
        jobs = listed_jobs(connection) if is_sandbox else newest_jobs(connection, state_dir)
        _name_results(connection, state_dir, Path(scratch), jobs)
        if is_sandbox:
            _shut_in(connection, state_dir, Path(scratch), jobs)
        else:
            connection.execute("SET lock_configuration = true")  # logging to files is a setting too
        yield connection


def run(connection: duckdb.DuckDBPyConnection, state_dir: Path, query: str, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
    """Check one statement, start it, and hand back its rows as they come; memory stays bounded by the batches.

    Read it with `batches`, which maps the errors that come late. Raises `QueryError`, or `StorageError` where the ledger is needed and
    out of reach.
    """
    with _mapped(connection, query):
        check_query(connection, query, state_dir)
        query = with_tables(query)
    return run_checked(connection, query, batch_rows)


def run_checked(connection: duckdb.DuckDBPyConnection, query: str, batch_rows: int) -> pa.RecordBatchReader:
    """As `run`, for a query that the caller has checked. Values that Arrow has no type for are text, as in `exactly`."""
    with _mapped(connection, query):
        result = cast("duckdb.DuckDBPyRelation | None", connection.sql(query))  # None for a statement without rows
        if result is None:
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        return exactly(result).to_arrow_reader(batch_rows)


def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The reader's batches. Raises `QueryError` where the query fails on a row."""
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise QueryError(_first_lines(str(error))) from error
        yield batch


def _shut_in(connection: duckdb.DuckDBPyConnection, state_dir: Path, scratch: Path, jobs: Sequence[str]) -> None:
    """External access off, but for the parts of ``jobs``; never the rows of their sources, which lie beside them."""
    folders = [str(StateFolder(state_dir).results(job)) for job in jobs]
    connection.execute("SET allowed_directories = $1", [[f"{folder}/" for folder in folders] + [f"{scratch}/"]])
    connection.execute("SET enable_external_access = false")


def _copy_ledger(connection: duckdb.DuckDBPyConnection, ledger_tables: LedgerTables) -> None:
    connection.execute("USE ledger")
    connection.execute(statements()["schema"])
    for table in TABLES:
        rows = ledger_tables(table)
        if rows is not None:
            connection.register("rows_of_ledger", rows)
            connection.execute(f"CREATE OR REPLACE TABLE {table} AS FROM rows_of_ledger")
            connection.unregister("rows_of_ledger")
    connection.execute("USE memory")
    for table in TABLES:
        columns = [line[0] for line in connection.sql(f"DESCRIBE ledger.{table}").fetchall()]
        shown = ", ".join(f'"{column}"' for column in columns if column not in _INTERNAL)
        connection.execute(f"CREATE VIEW {table} AS SELECT {shown} FROM ledger.{table}")


def _name_results(connection: duckdb.DuckDBPyConnection, state_dir: Path, scratch: Path, jobs: Sequence[str]) -> None:
    """Define ``results``. Its files are listed in a variable, the only place where a table macro can look up a list of files."""
    connection.execute("USE memory")
    files = {job: _parts(state_dir, job) for job in jobs}
    empty = [job for job, parts in files.items() if parts is None]
    found = files | {job: _write_empty(connection, job, scratch / f"none-{number}.parquet") for number, job in enumerate(empty)}
    if jobs:
        found["latest"] = found[jobs[0]]
    known = f"; the newest are: {', '.join(jobs[:5])}" if jobs else "; there is none yet: make one with harvester submit"
    lines = [{"job": job, "files": [name]} for job, name in found.items()]
    connection.execute("SET VARIABLE parts = map_from_entries($1::STRUCT(job VARCHAR, files VARCHAR[])[])", [lines])
    connection.execute("SET VARIABLE newest = $1", [known])
    connection.execute("SET VARIABLE empty = $1::VARCHAR[]", [empty])
    connection.execute(_RESULTS)


def _write_empty(connection: duckdb.DuckDBPyConnection, job: str, path: Path) -> str:
    """A part without rows, with the columns that the job's own parts will have; kept columns as text, for their types are not known."""
    try:
        specs = connection.execute("SELECT spec FROM ledger.jobs WHERE id = $1", [job]).fetchall()
        spec = JobSpec.model_validate_json(specs[0][0])
        kept, task = spec.keep, spec.task
    except (duckdb.Error, IndexError, ValueError, TypeError):
        kept, task = (), Task(name="unknown", prompt="{text}")
    schema = result_schema(pa.schema([(name, pa.string()) for name in kept]), kept, task)
    pq.write_table(schema.empty_table(), path)
    return str(path)


def newest_jobs(connection: duckdb.DuckDBPyConnection, state_dir: Path) -> list[str]:
    """Ids of all jobs, newest first: the ledger's, then folders that only the disk knows."""
    folders = [path for path in StateFolder(state_dir).jobs.glob("[!.]*") if path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    listed = listed_jobs(connection)
    return [*listed, *(path.name for path in folders if path.name not in set(listed))]


def listed_jobs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Ids of the ledger's jobs, newest first; none where it could not be read."""
    if connection.execute("SELECT getvariable('ledger_error')").fetchall() == [(None,)]:
        rows = connection.sql("SELECT id FROM ledger.jobs ORDER BY created_at_s DESC, id DESC").fetchall()
        return [str(row[0]) for row in rows]
    return []


def _parts(state_dir: Path, job: str) -> str | None:
    """Glob of a job's parts, or None where there is none yet."""
    folder = StateFolder(state_dir).results(job)
    if next(folder.glob("part-*.parquet"), None) is None:
        return None
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(folder))
    return f"{escaped}/part-*.parquet"


@contextmanager
def _mapped(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        reason = connection.execute("SELECT getvariable('ledger_error')").fetchall()[0][0]
        if reason is not None and isinstance(error, duckdb.CatalogException) and any(f"name {table} " in str(error) for table in TABLES):
            raise StorageError(reason) from error
        raise QueryError(_first_lines(str(error)) + _hint(connection, query, error)) from error


def _hint(connection: duckdb.DuckDBPyConnection, query: str, error: duckdb.Error) -> str:
    """Hint for a query that names a job without results, which has none of its own columns yet."""
    if not isinstance(error, duckdb.BinderException):
        return ""
    named = {word.text.strip("'") for word in tokens(query) if word.kind == "string_const"}
    empty = sorted(named & set(connection.execute("SELECT getvariable('empty')").fetchall()[0][0] or []))
    return f" (job {empty[0]} has no finished rows yet)" if empty else ""


def _first_lines(message: str) -> str:
    """DuckDB's message without its excerpt of the query: the fault, and what DuckDB suggests."""
    lines = [line.strip() for line in message.split("\nLINE ")[0].splitlines() if line.strip()]
    text = " ".join(lines[:3])
    for prefix in ("Invalid Input Error: ", "Parser Error: ", "Binder Error: ", "Catalog Error: ", "IO Error: "):
        text = text.removeprefix(prefix)
    return text[:500]
