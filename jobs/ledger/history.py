"""Records of earlier work in the ledger: usage and harvested tokens by hour, GPU-hours by day and job, answer lengths by task."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jobs.forecast.finish import Span
from jobs.forecast.lengths import Counted, Lengths
from jobs.forecast.rate import WINDOW_S
from jobs.ledger.store.contract import Store
from jobs.spec import JobSpec, LengthBand, PartStats, Spent
from jobs.tasks.spec import Task

HOUR_S = 3600.0
KEEP_DAYS = 30
USAGE_DAYS = 400
TOLD_DAYS = 1  # after which no replica repeats a report
GAP_S = 60.0  # between two marks; in a longer gap the ledger was down
MIN_BUSY_S = 5.0  # of work in an hour; less says nothing of a rate
LAST_DAYS = 3


class UsageLog:
    """Kept in the ledger's table ``usage``: what each owner used, hour by hour. `is_new` and `add` are called within a transaction."""

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        store.run("forget_usage", [now_s - USAGE_DAYS * 24 * HOUR_S])
        store.run("forget_told", [now_s - TOLD_DAYS * 24 * HOUR_S])

    def is_new(self, teller: str, number: int, now_s: float) -> bool:
        """Record report ``number`` of ``teller``. False where this report, or a later one, was recorded before."""
        return bool(self._store.run("note_told", [teller, number, now_s]))

    def add(self, spent: Spent, now_s: float) -> None:
        counts = [spent.requests, spent.prompt_tokens, spent.output_tokens]
        self._store.run("add_usage", [spent.owner, spent.kind, now_s - now_s % HOUR_S, *counts])


class HarvestLog:
    """Kept in the ledger's table ``harvest``, one row for each hour and model. What came since `write` is in memory."""

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        self._new: dict[tuple[str, float], list[float]] = {}  # rows, tokens and busy seconds by model and hour, not written yet
        self._marked_at_s: dict[str, float] = {}
        self._idle_from_s: dict[str, float] = {}  # by model of which no slice is leased, when one last was
        self._outages: Counter[str] = Counter()  # by model
        store.run("forget_harvest", [now_s - KEEP_DAYS * 24 * HOUR_S])

    def mark(self, model: str, now_s: float, *, busy: bool) -> None:
        """Record whether a slice of ``model`` is leased from now on."""
        before_s = self._marked_at_s.get(model)
        if before_s is not None:
            self._add(model, now_s, [0, 0, max(0.0, min(now_s - before_s, GAP_S))])
        if not busy:
            self._idle_from_s[model] = self._marked_at_s.pop(model, now_s)
            return
        self._marked_at_s[model] = now_s
        if now_s - self._idle_from_s.pop(model, now_s) > WINDOW_S:
            self._outages[model] += 1

    def shift(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds."""
        for times in (self._marked_at_s, self._idle_from_s):
            times.update({model: at_s + by_s for model, at_s in times.items()})

    def outages(self, model: str) -> int:
        """How often no slice of ``model`` was leased for longer than rates look back: its jobs had no work or no replica."""
        return self._outages[model]

    def idle(self, leased: Container[str], now_s: float) -> None:
        """End the busy time of every model that is not in ``leased``: no slice of it is leased from now on."""
        for model in [one for one in self._marked_at_s if one not in leased]:
            self.mark(model, now_s, busy=False)

    def add(self, model: str, rows: int, tokens: int, now_s: float) -> None:
        """Add rows and tokens that a part brought."""
        self._add(model, now_s, [rows, tokens, 0.0])

    def _add(self, model: str, now_s: float, counts: list[float]) -> None:
        key = (model, now_s - now_s % HOUR_S)
        before = self._new.get(key, [0, 0, 0.0])
        self._new[key] = [a + b for a, b in zip(before, counts, strict=True)]

    def write(self) -> None:
        """Call within a transaction."""
        for (model, hour_s), counts in self._new.items():
            self._store.run("add_harvest", [model, hour_s, *counts])

    def wrote(self) -> None:
        """Forget what `write` wrote, once its transaction has ended."""
        self._new.clear()

    def spans(self, model: str, now_s: float) -> list[Span]:
        return recent_spans(self._store.rows("harvest_rows"), model, now_s)


class HarvestedLog:
    """Kept in the table ``harvested``: GPU-hours, rows and tokens by day, job and key, and what they would have cost.

    Rows stay when a job's results are removed: it is an account. What came since `write` is in memory, and dies with the ledger.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: dict[tuple[str, str, str | None], tuple[JobSpec, list[float], float | None]] = {}  # by day, job and currency

    def add(self, job: JobSpec, spent: Spent, stats: PartStats, now_s: float) -> None:
        """``spent``: rows and tokens that a part brought; ``stats``: with device time and prices of this lease."""
        key = (datetime.fromtimestamp(now_s, UTC).date().isoformat(), job.id, stats.currency)
        counts = [spent.requests, spent.prompt_tokens, spent.output_tokens, stats.device_s / HOUR_S]
        _, before, cost = self._new.get(key, (job, [0, 0, 0, 0.0], None))
        costs = [one for one in (cost, _cost(spent, stats)) if one is not None]
        self._new[key] = (job, [a + b for a, b in zip(before, counts, strict=True)], sum(costs) if costs else None)

    def write(self) -> None:
        """Call within a transaction."""
        for (day, job_id, currency), (job, counts, cost) in self._new.items():
            self._store.run("add_harvested", [day, job_id, job.owner, job.model, *counts, cost, currency])

    def wrote(self) -> None:
        """Forget what `write` wrote, once its transaction has ended."""
        self._new.clear()


def _cost(spent: Spent, stats: PartStats) -> float | None:
    """Of the device time, or of the new tokens. None without a price."""
    if stats.token_prices is None:
        return stats.cost
    prompt_price, output_price = stats.token_prices
    return (spent.prompt_tokens * prompt_price + spent.output_tokens * output_price) / 1e6


def recent_spans(rows: Iterable[Mapping[str, Any]], model: str | None, now_s: float) -> list[Span]:
    """The hours with work of the last days, in order, from rows of the table ``harvest``. ``model`` None takes all."""
    since_s = now_s - LAST_DAYS * 24 * HOUR_S
    chosen = [row for row in rows if row["hour_s"] >= since_s and row["busy_s"] >= MIN_BUSY_S and model in (None, row["model"])]
    return [Span(row["busy_s"], row["tokens"]) for row in sorted(chosen, key=lambda row: float(row["hour_s"]))]


def task_key(task: Task, model: str) -> str:
    """A key, equal for jobs that ask the same of the same model; the task's name and description do not count."""
    told = [{name: value for name, value in task.key_fields().items() if name not in ("description", "name")}, model]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class LengthBook:
    """Answer lengths of every task and model, kept in the ledger's table ``lengths``. What came since `write` is in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Lengths] = {}
        self._new: dict[str, JobSpec] = {}  # by key, a job of each task whose lengths are not written yet
        self._keys: dict[str, str] = {}  # by job

    def of(self, job: JobSpec) -> Lengths:
        key = self._key(job)
        if key not in self._known:
            found = self._store.run("task_lengths", [key])
            self._known[key] = Lengths.from_json(json.loads(found[0][0])) if found else Lengths()
        return self._known[key]

    def learn(self, job: JobSpec, counts: tuple[Counted, ...]) -> None:
        """Add the counts of a slice's finished rows."""
        if counts:
            self.of(job).learn(counts)
            self._new[self._key(job)] = job

    def write(self) -> None:
        """Keep what was learnt. Call within a transaction."""
        for key, job in self._new.items():
            self._write(key, job, self.of(job))

    def wrote(self) -> None:
        """Forget what `write` wrote, once its transaction has ended."""
        self._new.clear()

    def _write(self, key: str, job: JobSpec, lengths: Lengths) -> None:
        state = json.dumps(lengths.to_json())
        self._store.run("forget_lengths", [key])
        for band in bands(lengths, job.task.most_tokens):
            values: list[float | None] = [band.prompt_tokens_from, band.prompt_tokens_to, band.rows, band.p50_tokens, band.p90_tokens]
            values += [band.p50_coverage, band.p90_coverage]
            self._store.run("insert_lengths", [key, job.task.name, job.model, *values, state])

    def _key(self, job: JobSpec) -> str:
        if job.id not in self._keys:
            self._keys[job.id] = task_key(job.task, job.model)
        return self._keys[job.id]


def bands(lengths: Lengths, max_tokens: int) -> tuple[LengthBand, ...]:
    """The bands as a job's view shows them. Lengths are capped at ``max_tokens``, because a bucket may end above it."""
    return tuple(
        LengthBand(
            prompt_tokens_from=item.prompt_tokens_from,
            prompt_tokens_to=item.prompt_tokens_to,
            rows=item.rows,
            p50_tokens=min(item.quantile_tokens[0], max_tokens),
            p90_tokens=min(item.quantile_tokens[1], max_tokens),
            p50_coverage=item.coverage[0] if item.coverage else None,
            p90_coverage=item.coverage[1] if item.coverage else None,
        )
        for item in lengths.report()
    )
