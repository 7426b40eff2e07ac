"""The ledger's table ``harvested``: GPU-hours, rows and tokens by day, job and key, and what they would have cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from jobs.ledger.store import Store
from jobs.spec import JobSpec, PartStats

HOUR_S = 3600.0


class HarvestedLog:
    """`add` is called within a transaction. Rows stay when a job's results are removed: it is an account."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, job: JobSpec, added: Mapping[str, int], stats: PartStats, now_s: float) -> None:
        """``added``: rows and tokens that the part has more than the one before; ``stats``: with the device time of this lease."""
        day = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        rows = added["rows_ok"] + added["rows_error"]
        place = [day, job.id, job.owner, job.model]
        counts = [rows, added["prompt_tokens"], added["output_tokens"], stats.device_s / HOUR_S]
        self._store.run("add_harvested", [*place, *counts, stats.cost, stats.currency])
