"""Where a state folder's ledger is: opens its store, and reads its tables for processes that do not own it."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from connectors.credentials import masked
from connectors.durable import publish
from connectors.errors import DamageError, StorageError
from connectors.processes.pickled import across_versions
from jobs.errors import StateError
from jobs.ledger.store.contract import Store
from jobs.ledger.store.sqlite import SqliteStore, check_sqlite, read_sqlite
from jobs.storage.folder import StateFolder
from jobs.storage.place import storage_place


@across_versions
@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """``owner`` identifies the state folder: its servers take the ledger over from each other, servers of other folders may not.

    ``opener`` identifies the process among those of the folder. One that ``reopens`` had the ledger before, and takes it over from nobody:
    whoever opened it since is the owner now.
    """

    url: str
    owner: str
    opener: str = ""
    reopens: bool = False

    def __str__(self) -> str:
        return masked(self.url)


Place = Path | PostgresPlace


def open_store(place: Place, *, count_missing: bool = True) -> Store:
    """Open as the one owner. Raises `StorageError`, `DamageError`, `OwnerError`."""
    if isinstance(place, Path):
        return SqliteStore(place, count_missing=count_missing)
    store: Store = _postgres().PostgresStore(place.url, place.owner, str(place), opener=place.opener, reopens=place.reopens)
    return store


def ledger_place(folder: StateFolder) -> Place:
    """Where the folder's last server had its ledger."""
    try:
        told = json.loads(folder.ledger_place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return folder.ledger
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {folder.ledger_place}: {error}; it says where the ledger is: start the server again") from error
    return PostgresPlace(str(told["url"]), str(told["owner"]))


def owner_of(folder: StateFolder) -> str | None:
    """Id of the folder in a database and in a storage; None where it uses neither."""
    place, storage = ledger_place(folder), storage_place(folder)
    if isinstance(place, PostgresPlace):
        return place.owner
    return None if storage is None else storage.owner


def settle_place(folder: StateFolder, url: str | None) -> Place:
    """Place of the ledger of a server with ``ledger: url``, None being the state folder.

    The folder keeps the address for commands and the next server. Raises `StateError` for None where the folder's ledger is in a database.
    """
    now = ledger_place(folder)
    if url is None:
        if isinstance(now, PostgresPlace):
            raise StateError(
                f"the ledger of {folder.root} is in {now}; give it as `ledger:`, or begin an empty one by removing {folder.ledger_place}"
            )
        return now
    place = PostgresPlace(url, owner_of(folder) or secrets.token_hex(8))
    if place != now:
        with publish(folder.ledger_place) as file:
            file.write(json.dumps({"url": place.url, "owner": place.owner}).encode() + b"\n")
    return place


def check_ledger(state_dir: Path) -> None:
    """Raise `DamageError` where the ledger is damaged or lacks changes, before anything is started on it.

    Other errors are left to whoever opens it.
    """
    folder = StateFolder(state_dir)
    place = ledger_place(folder)
    try:
        if isinstance(place, Path):
            check_sqlite(place)
    except DamageError:
        raise
    except StorageError:
        return  # a lock that a dying process still holds: its opener waits for that


def read_ledger(state_dir: Path, table: str) -> pa.Table | None:
    """All rows of one table, or None where the state folder has no ledger yet. Changes nothing; a server may be at work meanwhile.

    Reads what an earlier version left, where no server of this one has been started on it. Raises `StorageError`, `DamageError`.
    """
    folder = StateFolder(state_dir)
    place = ledger_place(folder)
    if isinstance(place, Path):
        if folder.old_ledger.exists() and not place.exists():
            from jobs.ledger.store.duckdb_ledger import read_duckdb  # only now: it loads DuckDB, which few ledgers are still in

            return read_duckdb(folder.old_ledger, table)
        return read_sqlite(place, table)
    return _postgres().read_postgres(place.url, str(place), table)


def _postgres() -> ModuleType:
    try:
        from jobs.ledger.store import postgres
    except ImportError as error:
        raise StorageError("a ledger in PostgreSQL needs its driver; install it with: pip install 'harvester-llm[postgres]'") from error
    return postgres
