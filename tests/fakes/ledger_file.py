"""A ledger file written by hand, for what reads one without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.ledger.store.sqlite import SqliteStore
from jobs.spec import COUNTS


@contextmanager
def ledger_file(state: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(state / "ledger.sqlite")
    try:
        yield store
    finally:
        store.close()


def add_job(store: SqliteStore, job: str, created_at_s: float, *, state: str = "running", rows_total: int = 4, rows_ok: int = 0) -> None:
    """A job of the task summarize, with one pending slice."""
    with store.transaction():
        store.run("insert_job", [job, job, "summarize", "docs.parquet", "tiny", rows_total, created_at_s, None, "[]", "{}"])
        store.run("set_state", [state, None, None, None, job])
        store.run("set_counts", [*(rows_ok if name == "rows_ok" else 0 for name in COUNTS), job])
        store.many("insert_slices", [[job, 0, 0, 0, 0, rows_total]])
