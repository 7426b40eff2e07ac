"""Response lengths of every task, kept in the ledger's table ``lengths``: a job of a task that ran before starts with what is known."""

from __future__ import annotations

import hashlib
import json

from jobs.forecast.lengths import Counted, Lengths
from jobs.ledger.store import Store
from jobs.spec import JobSpec, LengthBand
from jobs.tasks.spec import Task


def task_key(task: Task, model: str) -> str:
    """Equal for jobs that ask the same of the same model."""
    told = [task.model_dump(mode="json", exclude={"description", "name"}), model]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class LengthBook:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Lengths] = {}
        self._keys: dict[str, str] = {}  # by job

    def of(self, job: JobSpec) -> Lengths:
        key = self._key(job)
        if key not in self._known:
            found = self._store.run("task_lengths", [key])
            self._known[key] = Lengths.from_json(json.loads(found[0][0])) if found else Lengths()
        return self._known[key]

    def learn(self, job: JobSpec, counts: tuple[Counted, ...]) -> None:
        """Take a slice's finished rows in and keep the whole. Call within a transaction."""
        if not counts:
            return
        lengths = self.of(job)
        lengths.learn(counts)
        key = self._key(job)
        state = json.dumps(lengths.to_json())
        self._store.run("forget_lengths", [key])
        for band in bands(lengths, job.task.max_tokens):
            values: list[float | None] = [band.prompt_tokens_from, band.prompt_tokens_to, band.rows, band.p50_tokens, band.p90_tokens]
            values += [band.p50_coverage, band.p90_coverage]
            self._store.run("insert_lengths", [key, job.task.name, job.model, *values, state])

    def _key(self, job: JobSpec) -> str:
        if job.id not in self._keys:
            self._keys[job.id] = task_key(job.task, job.model)
        return self._keys[job.id]


def bands(lengths: Lengths, max_tokens: int) -> tuple[LengthBand, ...]:
    """As a job's view shows them. A bucket's upper end may lie above ``max_tokens``, which no answer does."""
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
