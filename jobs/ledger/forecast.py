"""What the ledger tracks of its jobs besides leases: their rate, their expected finish, and the boost or share for a deadline."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from jobs.config import DeadlineConfig
from jobs.forecast.deadline import DeadlineView, decide, explain
from jobs.forecast.finish import Finish, Left, Span, finish
from jobs.hint import SchedulingHint
from jobs.ledger.history import GAP_S, HarvestedLog, HarvestLog, LengthBook, bands
from jobs.ledger.record import ActiveLeases, JobRecord
from jobs.ledger.store.contract import Store
from jobs.spec import JobView, LengthBand, PartStats, Spent
from jobs.states import ACTIVE, ENDED

log = logging.getLogger("harvester.ledger")

DECIDE_S = 10.0  # between two decisions on a job: the last one must have shown its effect
WRITE_S = 5.0  # of rates and answer lengths: the most that a killed ledger loses
NEAR_S = 60.0  # with so near a deadline the decision does not wait until the job's rate has settled


class JobForecast:
    """Used by the one thread of the ledger."""

    def __init__(self, store: Store, leases: ActiveLeases, config: DeadlineConfig, now_s: float) -> None:
        self._store = store
        self._leases = leases
        self._config = config
        self._harvest = HarvestLog(store, now_s)
        self._harvested = HarvestedLog(store)
        self._lengths = LengthBook(store)
        self._history: dict[str, list[Span]] = {}  # by model, of the hours before
        self._history_at_s: float | None = None
        self._now_s = now_s
        self._is_new = False
        self._written_at_s = float("-inf")

    def sample(self, record: JobRecord, now_s: float) -> None:
        """Record how far a job is, after a heartbeat or a commit."""
        self._now_s = now_s
        self._harvest.mark(record.spec.model, now_s, busy=True)
        record.rate.add(now_s, *self._so_far(record), outages=self._harvest.outages(record.spec.model))
        running = self._leases.running(record.spec.id)
        record.row_tokens = running.tokens / running.computed if running.computed else record.row_tokens
        self._is_new = True

    def _so_far(self, record: JobRecord) -> tuple[int, int]:
        """Rows done, published or not, and their tokens with those of rows that retries replaced."""
        running = self._leases.running(record.spec.id)
        rows = record.rows_done - record.rows_to_retry + running.rows
        return rows, record.tokens_done + record.tokens_replaced + running.tokens

    def shift(self, records: Iterable[JobRecord], by_s: float) -> None:
        """The clock was set by ``by_s`` seconds. ``records``: all jobs."""
        self._harvest.shift(by_s)
        self._history_at_s = None
        for record in records:
            record.rate.shift(by_s)
            record.decided_at_s = None if record.decided_at_s is None else record.decided_at_s + by_s

    def idle(self, now_s: float) -> None:
        """Record the models of which no slice is leased any more."""
        self._now_s = now_s
        self._harvest.idle(self._leases.models, now_s)

    def committed(self, record: JobRecord, stats: PartStats) -> None:
        """Learn from a part whose rows were not counted before. Written within `WRITE_S`, in the transaction of a later commit."""
        if record.unread is None:  # else its task is not known
            self._lengths.learn(record.spec, stats.lengths)
        self._is_new = True

    def account(self, record: JobRecord, spent: Spent, stats: PartStats, now_s: float) -> None:
        """Account what a part brought, also of a retry. ``spent``, ``stats``: as in `HarvestedLog.add`."""
        self._harvest.add(record.spec.model, spent.requests, spent.prompt_tokens + spent.output_tokens, now_s)
        self._harvested.add(record.spec, spent, stats, now_s)
        self._is_new = True

    def is_due(self, now_s: float) -> bool:
        """Whether something was learnt that should be written now."""
        return self._is_new and not 0.0 <= now_s - self._written_at_s < WRITE_S

    @contextmanager
    def transaction(self, now_s: float | None = None, *, learnt: bool) -> Iterator[None]:
        """A transaction of the store; with ``learnt`` also of what was learnt, which stays in memory until the store has it."""
        with self._store.transaction():
            yield
            if learnt:
                self._harvest.write()
                self._harvested.write()
                self._lengths.write()
        if learnt:
            self._harvest.wrote()
            self._harvested.wrote()
            self._lengths.wrote()
            self._is_new = False
            self._written_at_s = self._written_at_s if now_s is None else now_s

    @property
    def is_new(self) -> bool:
        """Whether something was learnt that is not written."""
        return self._is_new

    def finish(self, record: JobRecord) -> Finish | None:
        """Expected finish of an active job; None for any other, and where no rate is known."""
        left = self._left(record, self._rows_left(record))
        if record.state not in ACTIVE or left is None:
            return None
        return finish(left, record.rate.spans or self._before(record.spec.model))

    def _rows_left(self, record: JobRecord) -> int:
        rows, _ = self._so_far(record)
        return max(0, record.spec.rows_total - rows)

    def _left(self, record: JobRecord, rows_left: int) -> Left | None:
        """Tokens left, with prompts as long as those of the rows done and answers as long as the task's rows had."""
        done = record.rows_done
        known = self._lengths.of(record.spec).spread()
        if not done or not record.row["prompt_tokens"]:  # nothing is published yet
            return None if record.row_tokens is None else Left(rows_left * record.row_tokens)
        prompt = record.row["prompt_tokens"] / done
        if known is None:
            return Left(rows_left * (prompt + record.row["output_tokens"] / done))
        requests = max(1.0, record.row["output_tokens"] / done / known[0]) if known[0] else 1.0  # rows of several requests
        return Left(rows_left * (prompt + requests * known[0]), known[1] * requests * rows_left**0.5)

    def _before(self, model: str) -> list[Span]:
        if self._history_at_s is None or self._now_s - self._history_at_s > DECIDE_S:
            self._history, self._history_at_s = {}, self._now_s
        if model not in self._history:
            self._history[model] = self._harvest.spans(model, self._now_s)
        return self._history[model]

    def hints(self, active: Collection[JobRecord], now_s: float) -> dict[str, SchedulingHint]:
        """The scheduling hint of each active job; decides again on those that are due."""
        self._now_s = now_s
        for record in active:
            is_due = record.decided_at_s is None or now_s - record.decided_at_s >= DECIDE_S
            if record.spec.deadline_at_s is not None and is_due:
                elapsed_s = 0.0 if record.decided_at_s is None else min(now_s - record.decided_at_s, GAP_S)
                record.stall.look(*self._so_far(record), elapsed_s)
                record.decided_at_s = now_s
                self._decide(record, record.spec.deadline_at_s, now_s, others=len(active) > 1)
        return {record.spec.id: replace(record.hint, answer_tokens=self._answer_tokens(record)) for record in active}

    def _answer_tokens(self, record: JobRecord) -> int | None:
        """Median answer length of the job's task; None for a batch, whose bodies need not be of one kind."""
        return self._lengths.of(record.spec).median() if record.spec.endpoint is None else None

    def _decide(self, record: JobRecord, deadline_at_s: float, now_s: float, *, others: bool) -> None:
        waits_on = not record.rate.settled and bool(record.rate.spans) and deadline_at_s - now_s > NEAR_S
        expected = None if waits_on else self.finish(record)
        high_s, stalled_s = None if expected is None else expected.high_s, record.stall.seconds if self._rows_left(record) else 0.0
        view = DeadlineView(now_s, deadline_at_s, high_s, record.hint, others, stalled_s)
        if view.slow_end_s is None and record.standing is not None and not record.is_stalled:
            return  # its rate is measured anew; what was decided and said last holds, but not that it makes no progress
        record.is_stalled = view.slow_end_s == math.inf
        hint = decide(view, self._config)
        if hint != record.hint:
            log.info("deadline job=%s boost=%.3g share=%.3g high_s=%s", record.spec.id, hint.boost, hint.share, view.slow_end_s)
        record.hint, record.standing = hint, explain(view, hint)

    def calm(self, record: JobRecord) -> None:
        """Reset the job's hint, because its deadline changed or it does not run."""
        record.hint, record.standing, record.is_stalled, record.decided_at_s = record.spec.hint(), None, False, None

    def lengths(self, record: JobRecord) -> tuple[LengthBand, ...]:
        return bands(self._lengths.of(record.spec), record.spec.task.most_tokens)

    def view(self, record: JobRecord, results: str, *, with_lengths: bool) -> JobView:
        """How a job stands."""
        expected = None if record.state in ENDED else self.finish(record)
        return record.view(self._leases.running(record.spec.id).rows, results, expected, self.lengths(record) if with_lengths else ())
