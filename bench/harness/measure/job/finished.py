"""What one timed run of an engine over all rows gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STEPS = "vllm:iteration_tokens_total_count"  # a histogram with one entry a step


def engine_steps(metrics: str) -> int:
    """Steps that an engine has made, from its Prometheus text. They show how full its batches were, however busy the machine was."""
    return round(sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(STEPS)))


@dataclass(frozen=True, slots=True)
class Finished:
    """``seconds``: of the work itself; ``around_s``: start and stop of the engine. ``steps``: of the engine. ``answers`` by row_id."""

    system: str
    seconds: float
    around_s: float
    prompt_tokens: int
    output_tokens: int
    steps: int
    answers: dict[int, str]

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def line(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "seconds": round(self.seconds, 3),
            "around_s": round(self.around_s, 1),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "engine_steps": self.steps,
            "offline_tokens_per_s": round(self.tokens / self.seconds, 1),
        }


def pooled(runs: list[Finished]) -> float:
    """Tokens per second over several runs of one system: all tokens over all seconds."""
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def share_equal(one: Finished, other: Finished) -> float:
    """Share of the rows that both answered with the same text."""
    rows = one.answers.keys() | other.answers.keys()
    return sum(one.answers.get(row) == other.answers.get(row) for row in rows) / len(rows)
