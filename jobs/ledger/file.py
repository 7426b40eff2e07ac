"""The ledger's tables, read from its file while no server holds it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from connectors.errors import StorageError
from jobs.folder import StateFolder

TABLES = ("jobs", "leases", "harvest", "lengths")


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
        return None  # of an earlier version, which had no such table
    except duckdb.IOException as error:
        if "lock" in str(error):
            raise StorageError(
                f"the ledger {path} is held by a running server that did not answer; give its address with --url, or stop it"
            ) from error
        raise StorageError(f"cannot read the ledger {path}: {str(error).splitlines()[0]}") from error
    except duckdb.Error as error:
        raise StorageError(f"cannot read the ledger {path}: {str(error).splitlines()[0]}") from error
