"""Prepares a state folder for a server: migrates an earlier version's ledger, settles where ledger and storage are, finds damage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from connectors.durable import storage_error, sync_folder
from jobs.errors import StateError
from jobs.ledger.store.duckdb_ledger import MOVED, copy_tables, migrate
from jobs.ledger.store.place import PostgresPlace, check_ledger, open_store, owner_of, settle_place
from jobs.ledger.store.statements import TABLES
from jobs.storage.folder import StateFolder
from jobs.storage.place import settle_storage


def ready_state(folder: StateFolder, url: str | None, storage: str | None = None) -> list[str]:
    """Call it while the folder is locked. Returns what was done, a line each.

    ``url``: of a PostgreSQL database for the ledger, ``storage``: the place of all other files; None: the folder itself. Raises
    `StateError`, `StorageError`, `DamageError`.
    """
    done = migrate(folder)
    lines = [] if done is None else [done]
    lines += settle_storage(folder, storage, may_adopt=url is not None, owner=owner_of(folder))
    place = settle_place(folder, url)
    check_ledger(folder.root)
    if isinstance(place, PostgresPlace) and folder.ledger.exists():
        lines.append(_into(place, folder.ledger))
    return lines


def _into(place: PostgresPlace, path: Path) -> str:
    """Move the file's tables into a database, which must have no jobs yet."""
    file = open_store(path)  # becomes the owner, so that an actor that still has it can write no more
    tables: dict[str, pa.Table | None] = {table: file.arrow(table) for table in TABLES}
    file.close()
    store = open_store(place)
    try:
        if store.rows("job_rows"):
            raise StateError(f"the database {place} has jobs, and so has {path}: move that file away, or give an empty database")
        copy_tables(tables, store)
    finally:
        store.close()
    kept = path.with_name(path.name + MOVED)
    try:
        path.replace(kept)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error("move", path, error) from error
    jobs = tables["jobs"]
    return f"moved the ledger ({0 if jobs is None else jobs.num_rows} jobs) from {path.name} to {place}; the file is kept as {kept.name}"
