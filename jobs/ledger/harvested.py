"""The ledger's table ``harvested``: GPU-hours, rows and tokens by day, job and key, and what they would have cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from jobs.ledger.store.contract import Store
from jobs.spec import JobSpec, PartStats

HOUR_S = 3600.0


class HarvestedLog:
    """Rows stay when a job's results are removed: it is an account. What came since `write` is in memory, and dies with the ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: dict[tuple[str, str, str | None], tuple[JobSpec, list[float], float | None]] = {}  # by day, job and currency

    def add(self, job: JobSpec, added: Mapping[str, int], stats: PartStats, now_s: float) -> None:
        """``added``: rows and tokens that the part has more than the one before; ``stats``: with the device time of this lease."""
        key = (datetime.fromtimestamp(now_s, UTC).date().isoformat(), job.id, stats.currency)
        rows = added["rows_ok"] + added["rows_error"]
        counts = [rows, added["prompt_tokens"], added["output_tokens"], stats.device_s / HOUR_S]
        _, before, cost = self._new.get(key, (job, [0, 0, 0, 0.0], None))
        costs = [one for one in (cost, stats.cost) if one is not None]
        self._new[key] = (job, [a + b for a, b in zip(before, counts, strict=True)], sum(costs) if costs else None)

    def write(self) -> None:
        """Call within a transaction."""
        for (day, job_id, currency), (job, counts, cost) in self._new.items():
            self._store.run("add_harvested", [day, job_id, job.owner, job.model, *counts, cost, currency])
        self._new.clear()
