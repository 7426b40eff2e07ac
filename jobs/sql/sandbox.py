"""SQL for clients of the server: it reads harvester's views and results, and nothing else on the server's machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.value import plain, values
from jobs.errors import QueryError
from jobs.sql.guard import check_reads
from jobs.sql.query import LedgerTables, batches, connect, run_checked
from jobs.sql.spool import write_answer

SECONDS = 10.0
AGAIN_S = 0.05
ANSWER_BYTES = 16 << 20
BATCH_ROWS = 256
MAX_QUERY_CHARS = 100_000
_LIMITS = {"memory_limit": "1GB", "max_temp_directory_size": "2GB", "threads": "2"}


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """``rows`` hold JSON values (see `connectors.value.plain`). ``is_cut``: the query has more rows."""

    columns: tuple[tuple[str, str], ...]  # name, Arrow type
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


def ask(state_dir: Path, ledger_tables: LedgerTables, query: str, *, limit_rows: int, seconds: float = SECONDS) -> QueryAnswer:
    """Run one SELECT with external access off: no other file, no network, no ATTACH, nothing written.

    The answer ends at ``limit_rows`` or 16 MiB. Raises `QueryError`, also for a query that takes longer than ``seconds``.
    """
    with _answered(state_dir, ledger_tables, query, seconds) as reader:
        columns = tuple((field.name, str(field.type)) for field in reader.schema)
        rows: list[tuple[Any, ...]] = []
        room_bytes = ANSWER_BYTES
        for batch in batches(reader):
            some = _fitting(batch, room_bytes)
            room_bytes -= some.nbytes
            rows += zip(*(_cells(name, column) for name, column in zip(some.schema.names, some.columns, strict=True)), strict=True)
            if len(rows) > limit_rows or some.num_rows < batch.num_rows:
                if not rows:
                    raise QueryError(f"a row has more than {ANSWER_BYTES >> 20} MiB; select a part of its text, e.g. left(output, 1000)")
                return QueryAnswer(columns, tuple(rows[:limit_rows]), is_cut=True)
        return QueryAnswer(columns, tuple(rows), is_cut=False)


def keep(state_dir: Path, ledger_tables: LedgerTables, query: str, path: Path, min_free_bytes: int, *, seconds: float) -> int:
    """As `ask`, but the whole answer becomes an Arrow IPC stream in ``path``. Returns the number of its rows."""
    with _answered(state_dir, ledger_tables, query, seconds) as reader:
        return write_answer(path, reader.schema, batches(reader), min_free_bytes)


@contextmanager
def _answered(state_dir: Path, ledger_tables: LedgerTables, query: str, seconds: float) -> Iterator[pa.RecordBatchReader]:
    if len(query) > MAX_QUERY_CHARS:
        raise QueryError(f"the query has {len(query):,} characters; the limit is {MAX_QUERY_CHARS:,}")
    with connect(state_dir, ledger_tables, is_sandbox=True) as connection, _ending(connection, seconds):
        for name, value in _LIMITS.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.execute("SET lock_configuration = true")
        check_reads(connection, query)
        yield run_checked(connection, query, BATCH_ROWS)


def _fitting(batch: pa.RecordBatch, room_bytes: int) -> pa.RecordBatch:
    """The first rows of ``batch`` that fit."""
    if batch.nbytes <= room_bytes:
        return batch
    count = 0
    while (room_bytes := room_bytes - batch.slice(count, 1).nbytes) >= 0:
        count += 1
    return batch.slice(0, count)


def _cells(name: str, column: pa.Array) -> list[Any]:
    return [plain(cell) for cell in values(column)]


@contextmanager
def _ending(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Stop what runs on the connection after ``seconds``."""
    late, over = threading.Event(), threading.Event()

    def stop() -> None:
        if not over.wait(seconds):
            late.set()
            connection.interrupt()
            while not over.wait(AGAIN_S):  # one that comes between two statements stops neither
                connection.interrupt()

    timer = threading.Thread(target=stop, name="query-time", daemon=True)
    timer.start()
    try:
        yield
    except QueryError as error:
        if late.is_set():
            raise QueryError(f"the query took more than {seconds:.0f} s and was stopped; narrow it with WHERE or LIMIT") from error
        if error.message.startswith("Permission Error"):
            raise QueryError("files and addresses cannot be read here; SQL reads the tables of the ledger and results('JOB')") from error
        raise
    finally:
        over.set()
        timer.join()
