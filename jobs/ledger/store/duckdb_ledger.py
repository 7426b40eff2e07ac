"""The DuckDB ledger of state folders before version 2: reads it, and moves it into another store once."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from connectors.durable import storage_error, sync_folder
from connectors.edge import first_line
from connectors.errors import StorageError
from jobs.ledger.store.commits import CommitCount
from jobs.ledger.store.contract import COMMITS, Store, check_count
from jobs.ledger.store.sqlite import SqliteStore, damaged
from jobs.ledger.store.statements import TABLES, columns
from jobs.ledger.store.sums import SUMS
from jobs.spec import COUNTS
from jobs.storage.folder import StateFolder

MOVED = ".migrated"  # behind the old file's name
_LOG = ".wal"  # DuckDB's


def read_duckdb(path: Path, table: str) -> pa.Table | None:
    """All rows of one table, in today's columns; None where it was never made. Raises `StorageError`, `DamageError`."""
    try:
        with duckdb.connect(str(path), read_only=True) as ledger:
            _check(ledger, path)
            return _table(ledger, table)
    except duckdb.CatalogException:
        return None  # its server died before it made the tables
    except duckdb.Error as error:
        raise _unopened(path, error) from error


def migrate(folder: StateFolder) -> str | None:
    """Move an old ledger into a new file. Returns what was done, in one line; None where there was nothing to do.

    Call it while the folder is locked and no ledger is open. A process killed meanwhile leaves the old one, or both, of which the new one
    counts. Raises `StorageError`, `DamageError`.
    """
    old, new = folder.old_ledger, folder.ledger
    if not old.exists():
        folder.mark_version()
        return None
    jobs = None if new.exists() else _copied(old, new)
    kept = old.with_name(old.name + MOVED)
    try:
        for suffix in (_LOG, ""):
            if (part := old.with_name(old.name + suffix)).exists():
                part.replace(kept.with_name(old.name + MOVED + suffix))
        sync_folder(folder.root)
    except OSError as error:
        raise storage_error("move", old, error) from error
    folder.mark_version()
    return f"moved the ledger ({jobs or 0} jobs) from {old.name} to {new.name}; the old file is kept as {kept.name}"


def _copied(old: Path, new: Path) -> int:
    """Copy the old ledger. Returns the number of jobs. The new file appears atomically, with the old one's count of changes."""
    making = new.with_name(f"making-{new.name}")
    for path in new.parent.glob(f"{making.stem}.*"):
        path.unlink()
    tables = {table: read_duckdb(old, table) for table in TABLES}
    with duckdb.connect(str(old), read_only=True) as ledger:
        count = _count(ledger)
    store = SqliteStore(making)
    try:
        copy_tables(tables, store, count)
    finally:
        store.close()
    if making.with_name(f"{making.name}-wal").exists():
        raise StorageError(f"cannot write {making}: its log could not be copied into it; check the disk of the state folder")
    making.with_suffix(COMMITS).unlink(missing_ok=True)
    making.with_suffix(SUMS).replace(new.with_suffix(SUMS))
    making.replace(new)
    sync_folder(new.parent)
    jobs = tables["jobs"]
    return 0 if jobs is None else int(jobs.num_rows)


def copy_tables(tables: dict[str, pa.Table | None], store: Store, count: int | None = None) -> None:
    """Fill an empty store, and set its count of changes to ``count``; None leaves it as it is."""
    with store.transaction():
        for name, table in tables.items():
            rows = [] if table is None else zip(*(column.to_pylist() for column in table.columns), strict=True)
            store.many(f"copy_{name}", rows)
        if count is not None:
            store.run("take_over_commits", [count])


def _check(ledger: duckdb.DuckDBPyConnection, path: Path) -> None:
    told = CommitCount(path.with_suffix(COMMITS)).read()
    if told is not None:
        check_count(path, _count(ledger), told)


def _count(ledger: duckdb.DuckDBPyConnection) -> int:
    try:
        return int(ledger.sql("SELECT coalesce(max(count), 0) FROM commits").fetchall()[0][0])
    except duckdb.CatalogException:  # of a version that did not count
        return 0


def _table(ledger: duckdb.DuckDBPyConnection, table: str) -> pa.Table:
    there = {line[0] for line in ledger.sql(f"DESCRIBE {table}").fetchall()}
    schema = columns(table)
    missing = {name: 0 if name in COUNTS else "NULL" for name in schema.names}
    wanted = ", ".join(f'"{name}"' if name in there else f'{missing[name]} AS "{name}"' for name in schema.names)
    return ledger.sql(f"SELECT {wanted} FROM {table}").to_arrow_table().cast(schema)


def _unopened(path: Path, error: duckdb.Error) -> StorageError:
    told = str(error)
    if "lock" in told and isinstance(error, duckdb.IOException):
        return StorageError(f"the ledger {path} is held by a running server of an earlier version; stop it with: harvester stop")
    causes = ("Permission denied", "No space left on device", "Read-only file system", "Input/output error", "Too many open files")
    cause = next((words for words in causes if words in told), None)
    if cause is not None:
        return StorageError(f"cannot open the ledger {path}: {cause.lower()}; check the disk and the rights of the state folder")
    return damaged(str(path), first_line(error))
