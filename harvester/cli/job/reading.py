"""Where a command reads rows from: the state folder, or a server of another machine or user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa

from connectors.parquet.parts import PartsSink
from harvester.api.client import SQL_S
from harvester.api.flow import ask
from harvester.api.stream import answer_of, rows_of
from harvester.api.wire import Wire
from harvester.cli.client import Client, ServerInfo
from harvester.cli.invocation import Invocation
from harvester.cli.job.wired import is_elsewhere, translated, wired
from harvester.errors import HarvesterError
from jobs.ledger.store.place import read_ledger
from jobs.sql.fetch import LATEST, fetch_results, newest_ids
from jobs.sql.guard import check_target
from jobs.sql.query import batches, connect, newest_jobs, run
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.storage.parts import results_of
from jobs.storage.place import known_folder

ALL, ERRORS = "SELECT * FROM results('{job}')", "SELECT * FROM results('{job}') WHERE status = 'error'"


@dataclass(frozen=True, slots=True)
class RowStream:
    """Rows as they come."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class Reading(Protocol):
    def query(self, query: str) -> RowStream:
        """Rows of one statement. Raises `QueryError`."""

    def results(self, job: str, *, only_errors: bool = False) -> RowStream:
        """Rows of a job. Raises `QueryError` or `NotFoundError` for a job that is not there."""

    def check_parts(self, job: str) -> None:
        """Raise `DamageError` for a damaged part, which `results` would not notice with ``only_errors``."""

    def check_target(self, path: Path) -> None:
        """Raise `QueryError` for a file to write that lies in the state folder."""


@dataclass(frozen=True, slots=True)
class FromFolder:
    """The state folder, on this machine."""

    connection: duckdb.DuckDBPyConnection
    folder: StateFolder

    def query(self, query: str) -> RowStream:
        reader = run(self.connection, self.folder.root, query)
        return RowStream(reader.schema, batches(reader))

    def results(self, job: str, *, only_errors: bool = False) -> RowStream:
        """By Arrow, as a server elsewhere sends them: DuckDB would change values of the types that it lacks."""
        sink = None if only_errors else self._sink(job)
        if sink is not None:
            schema, rows = sink.stream()
            if schema.names:
                return RowStream(schema, rows)
        return self.query(results_query(job, only_errors=only_errors))  # which knows the columns of a job without parts

    def check_parts(self, job: str) -> None:
        sink = self._sink(job)
        if sink is not None:
            sink.check()  # DuckDB does not check the checksums of pages

    def check_target(self, path: Path) -> None:
        check_target(path, self.folder.root)

    def _sink(self, job: str) -> PartsSink | None:
        """Of a job that may be named ``latest``; None: unknown."""
        jobs = newest_jobs(self.connection, self.folder.root)
        name = jobs[0] if job == LATEST and jobs else job
        return results_of(self.folder, name) if name in jobs else None


@dataclass(frozen=True, slots=True)
class FromServer:
    """A server whose files are out of reach: Arrow over HTTP."""

    wire: Wire

    def query(self, query: str) -> RowStream:
        with translated():
            told = self.wire.run(ask("POST", "/api/sql/answers", json={"query": query}, timeout_s=SQL_S))
            return _answer(answer_of(self.wire, str(told["id"])))

    def results(self, job: str, *, only_errors: bool = False) -> RowStream:
        if only_errors:
            return self.query(results_query(job, only_errors=only_errors))
        with translated():
            return _answer(rows_of(self.wire, job))

    def check_parts(self, job: str) -> None:
        """The server checks them while it reads."""

    def check_target(self, path: Path) -> None:
        """Its state folder is elsewhere."""


@contextmanager
def reading(here: Invocation, query: str) -> Iterator[Reading]:
    """Open what the command reads its rows from. The ledger's tables come from the server, if one answers.

    ``query``: results that it names are fetched first, if they are in a storage; `results_query` gives the query of one job.
    """
    reached = here.try_reach()
    try:
        if reached is not None and is_elsewhere(reached[0]):
            with wired(reached[0]) as wire:
                yield FromServer(wire)
            return
        state_dir = here.local_state(reached[1] if reached else None)
        folder, tables = known_folder(state_dir), _tables(reached, state_dir)
        if folder.mirror is not None:
            fetch_results(folder, query, _known_jobs(folder, folder.mirror, tables))
        with connect(state_dir, tables) as connection:
            yield FromFolder(connection, folder)
    finally:
        if reached is not None:
            reached[0].close()


def _answer(opened: tuple[pa.Schema, Iterator[pa.RecordBatch]]) -> RowStream:
    def read() -> Iterator[pa.RecordBatch]:
        with translated():
            yield from opened[1]

    return RowStream(opened[0], read())


def _known_jobs(folder: StateFolder, mirror: Mirror, tables: Callable[[str], pa.Table] | None) -> list[str]:
    """Job ids, newest first; in any order if the ledger cannot be read."""
    try:
        return newest_ids(read_ledger(folder.root, "jobs") if tables is None else tables("jobs"))
    except HarvesterError:
        return sorted(mirror.names(folder.jobs))


def results_query(job: str, *, only_errors: bool = False) -> str:
    return (ERRORS if only_errors else ALL).format(job=job.replace("'", "''"))


def _tables(reached: tuple[Client, ServerInfo] | None, state_dir: Path) -> Callable[[str], pa.Table] | None:
    if reached is None or Path(reached[1].state).resolve() != state_dir.resolve():
        return None
    return partial(reached[0].ledger)
