"""What was harvested hour by hour: tokens, and the seconds in which there was work. The rate that estimates of new jobs take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.forecast.finish import Span
from jobs.ledger.store import Store

HOUR_S = 3600.0
KEEP_DAYS = 30
GAP_S = 60.0  # between two marks; a longer one was a ledger that was away
MIN_BUSY_S = 5.0  # of work in an hour; less says nothing of a rate
LAST_DAYS = 3


class HarvestLog:
    """Kept in the ledger's table ``harvest``, one row for each hour and model; the current hour is written with each commit."""

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        self._busy_s: dict[str, float] = {}  # since the last commit
        self._marked_at_s: dict[str, float] = {}
        store.run("forget_harvest", [now_s - KEEP_DAYS * 24 * HOUR_S])

    def mark(self, model: str, now_s: float, *, busy: bool) -> None:
        """Whether a slice of ``model`` is leased from now on."""
        before_s = self._marked_at_s.get(model)
        if before_s is not None:
            self._busy_s[model] = self._busy_s.get(model, 0.0) + max(0.0, min(now_s - before_s, GAP_S))
        if busy:
            self._marked_at_s[model] = now_s
        else:
            self._marked_at_s.pop(model, None)

    def add(self, model: str, rows: int, tokens: int, now_s: float) -> None:
        """Rows that a commit brought. Call within its transaction."""
        hour_s, busy_s = now_s - now_s % HOUR_S, self._busy_s.pop(model, 0.0)
        if self._store.run("harvest_hour", [model, hour_s]):
            self._store.run("add_harvest", [rows, tokens, busy_s, model, hour_s])
        else:
            self._store.run("insert_harvest", [model, hour_s, rows, tokens, busy_s])

    def spans(self, model: str, now_s: float) -> list[Span]:
        return recent_spans(self._store.rows("harvest_rows"), model, now_s)


def recent_spans(rows: Iterable[Mapping[str, Any]], model: str | None, now_s: float) -> list[Span]:
    """The hours with work of the last days, in order, from rows of the table ``harvest``. ``model`` None takes all."""
    since_s = now_s - LAST_DAYS * 24 * HOUR_S
    chosen = [row for row in rows if row["hour_s"] >= since_s and row["busy_s"] >= MIN_BUSY_S and model in (None, row["model"])]
    return [Span(row["busy_s"], row["tokens"]) for row in sorted(chosen, key=lambda row: float(row["hour_s"]))]
