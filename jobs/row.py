"""One row's way: text → prompt that fits → answer → typed values; every failure of its own ends in the row, not in the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from connectors.text import TextProblem
from jobs.engine import Completion, Engine, Prompt, RowError
from jobs.prompt import build_messages
from jobs.result import Row
from jobs.spec import JobSpec
from jobs.tasks.answer import parse_answer
from jobs.tasks.fit import fit
from jobs.tasks.spec import AnswerKind

WINDOW_ROWS = 64  # rows within which the engine may put those with a common prefix together
TEMPLATE_TOKENS = 64  # more than any chat template adds around two messages


class RowWork:
    """Answers the rows of one job with one engine. ``now_s`` is the wall clock."""

    def __init__(self, job: JobSpec, engine: Engine, now_s: Callable[[], float]) -> None:
        self._job = job
        self._engine = engine
        self._now_s = now_s
        self._budget_tokens = engine.context_tokens - job.task.max_tokens

    async def answer(self, row_id: int, values: Mapping[str, object], text: str | TextProblem | None, attempts: int, tag: str) -> Row:
        """``values``: the row's columns; ``text``: its text cell, None where the task reads no text column. Raises `EngineGone`."""
        began_s = self._now_s()
        completion: Completion | None = None
        truncated = False
        try:
            if isinstance(text, TextProblem):
                raise RowError(text.code, text.message)
            if text is not None:
                text, truncated = await self._fit(values, text)
            prompt = self._prompt(row_id, values, text, tag)
            completion = await self._engine.complete(prompt)
            answer = parse_answer(self._job.task, completion.text, completion.finish_reason)
        except RowError as error:
            return self._row(row_id, {}, attempts, began_s, truncated, completion, error)
        return self._row(row_id, answer, attempts, began_s, truncated, completion, None)

    def give_up(self, row_id: int, begun: int) -> Row:
        return lost_row(row_id, begun, self._now_s())

    async def _fit(self, values: Mapping[str, object], text: str) -> tuple[str, bool]:
        """The text, cut at the end of a sentence where the prompt would not fit the context."""
        size = sum(len(message["content"].encode("utf-8", "replace")) for message in self._messages(values, text))
        if size + TEMPLATE_TOKENS <= self._budget_tokens:  # a token is at least a byte
            return text, False

        async def count(candidate: str) -> int:
            return await self._engine.count_tokens(self._messages(values, candidate))

        result = await fit(text, count, self._budget_tokens)
        return result.text, result.truncated

    def _messages(self, values: Mapping[str, object], text: str | None) -> tuple[dict[str, str], ...]:
        column = self._job.column
        row = values if column is None or text is None else {**values, column: text}
        return build_messages(self._job.task, column, row)

    def _prompt(self, row_id: int, values: Mapping[str, object], text: str | None, tag: str) -> Prompt:
        task = self._job.task
        return Prompt(
            request_id=f"{self._job.id}-{row_id}-{tag}",
            job=self._job.id,
            window=row_id // WINDOW_ROWS,
            messages=self._messages(values, text),
            max_tokens=task.max_tokens,
            temperature=task.temperature,
            choices=task.labels if task.answer is AnswerKind.CHOICE else None,
            json_schema=task.json_schema if task.answer is AnswerKind.JSON else None,
        )

    def _row(
        self,
        row_id: int,
        values: Mapping[str, object],
        attempts: int,
        began_s: float,
        truncated: bool,
        completion: Completion | None,
        error: RowError | None,
    ) -> Row:
        return finished_row(row_id, values, attempts, began_s, self._now_s(), completion, error, truncated=truncated)


def lost_row(row_id: int, begun: int, now_s: float) -> Row:
    """The result of a row that was begun ``begun`` times and never finished: it seems to be what kills the engine."""
    error = RowError("engine_lost", f"the engine was lost {begun} times while this row was in work")
    return finished_row(row_id, {}, begun, now_s, now_s, None, error)


def finished_row(
    row_id: int,
    values: Mapping[str, object],
    attempts: int,
    began_s: float,
    ended_s: float,
    completion: Completion | None,
    error: RowError | None,
    *,
    truncated: bool = False,
) -> Row:
    """What has become of a row: its values, or an error, and what it cost."""
    return Row(
        row_id=row_id,
        values=dict(values),
        status="ok" if error is None else "error",
        error_code=error.code if error else None,
        error_message=error.message if error else None,
        finish_reason=completion.finish_reason if completion else None,
        prompt_tokens=completion.prompt_tokens if completion else 0,
        cached_tokens=completion.cached_tokens if completion else 0,
        output_tokens=completion.output_tokens if completion else 0,
        preemptions=completion.preemptions if completion else 0,
        attempts=attempts,
        latency_ms=(ended_s - began_s) * 1000.0,
        truncated=truncated,
        completed_at_s=ended_s,
    )
