"""A job in memory: its line of the ledger, its spec, and what no file needs to keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from jobs.rate import Rate
from jobs.spec import JobSpec, JobView
from jobs.states import ACTIVE, ENDED, JobState


@dataclass(slots=True)
class Entry:
    line: dict[str, Any]
    spec: JobSpec
    rate: Rate
    turn: int = 0  # of the last lease it was given, counted over all jobs
    error_example: str | None = None  # how a row of it failed last

    @classmethod
    def of(cls, line: dict[str, Any]) -> Self:
        return cls(line, JobSpec.model_validate_json(line["spec"]), Rate())

    @property
    def state(self) -> JobState:
        return JobState(self.line["state"])

    @property
    def rows_done(self) -> int:
        """Rows in published parts."""
        return int(self.line["rows_ok"] + self.line["rows_error"])

    @property
    def tokens_done(self) -> int:
        return int(self.line["prompt_tokens"] + self.line["output_tokens"])

    def view(self, rows_running: int, results: str) -> JobView:
        """``rows_running``: rows done in slices that are leased."""
        line = self.line
        kept = {name: line[name] for name in JobView.model_fields if name in line and name not in ("notes", "state")}
        return JobView(
            **kept,
            state=self.state,
            rows_running=rows_running,
            offline_tokens_per_s=self._tokens_per_s(),
            eta_s=self._eta_s(rows_running),
            results=results,
            notes=tuple(json.loads(line["notes"])),
        )

    def _tokens_per_s(self) -> float | None:
        """Over the last minute while it runs; over its whole life once it has ended."""
        line = self.line
        if self.state in ENDED and line["started_at_s"] is not None and line["ended_at_s"] > line["started_at_s"]:
            return float(self.tokens_done / (line["ended_at_s"] - line["started_at_s"]))
        return self.rate.tokens_per_s

    def _eta_s(self, rows_running: int) -> float | None:
        if self.state in ENDED:
            return 0.0
        rows_per_s = self.rate.rows_per_s
        if self.state not in ACTIVE or rows_per_s is None:
            return None
        return float(max(0, self.spec.rows_total - self.rows_done - rows_running) / rows_per_s)
