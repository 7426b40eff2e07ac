"""A ledger with scripted work: jobs entered, slices leased and committed at times of the test; and its disk full."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

from jobs.ledger.ledger import Ledger
from jobs.ledger.store.sqlite import SqliteStore
from jobs.spec import JobSpec, PartStats
from jobs.testing import scripted_plan

NOW_S = 1_000_000.0


def opened(path: Path, **options: Any) -> Ledger:
    return Ledger(path, Path("/state/jobs"), lease_s=1000.0, now_s=NOW_S, new_server=True, **options)


def enter(ledger: Ledger, name: str, rows: int = 400, **changes: Any) -> str:
    plan = scripted_plan(name, rows, 4, created_at_s=NOW_S)
    return ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update=changes)}), new=True)[0].id


def work(ledger: Ledger, now_s: float, rows: int = 4, **stats: Any) -> str | None:
    """Lease a slice and commit it."""
    lease = ledger.lease("a", "scripted", now_s)
    if lease is None:
        return None
    done = {"rows_ok": rows, "prompt_tokens": 100 * rows, "output_tokens": 20 * rows, **stats}
    ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, PartStats(**done), now_s)
    return lease.job.id


def spec_of(ledger: Ledger, job_id: str) -> JobSpec:
    """As a lease of the job would carry it."""
    return ledger._book.record(job_id).spec


class FullDisk:
    """SQLite's connection, on a disk that has no room for a commit until it is mended."""

    def __init__(self, ledger: Ledger) -> None:
        store = cast("SqliteStore", ledger._book.store)
        self._db = store._db
        self.full = True
        store._db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, query: str, *values: object) -> Any:
        if self.full and query == "COMMIT":
            raise sqlite3.OperationalError("No space left on device")
        return self._db.execute(query, *values)  # type: ignore[arg-type]
