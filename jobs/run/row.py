"""One row's way: text → prompt that fits → answer → typed values; or OpenAI request → response. Errors end up in the row's result."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connectors.errors import HarvesterError
from connectors.text import TextProblem, storable
from jobs.access.images import ImageBounds, ImageReader
from jobs.engine import ApiCall, EngineGone, Message, RowEngine, RowError
from jobs.hint import SchedulingHint
from jobs.longtext.fit import Count, fit, measure
from jobs.result import Row
from jobs.run.attempt import RowAttempt, Tally
from jobs.run.document import read_in_parts
from jobs.spec import JobSpec, OnLong
from jobs.tasks.answer import OUTPUT, reasoning_value
from jobs.tasks.template import build_messages

log = logging.getLogger("harvester.runner")

HTTP = "http_"  # error codes of requests that were answered with a status of 400 or more: ``http_400``


@dataclass(slots=True)
class RowOutcome:
    """``parts``: number of parts of the text, each with its own request; 1 for a text that was not split."""

    values: Mapping[str, object] = field(default_factory=dict)
    parts: int = 1
    truncated: bool = False
    error: RowError | None = None


class RowWork:
    """Answers the rows of one job with one engine. ``now_s`` is the wall clock; ``slots`` bounds the parts of long texts in the engine.

    ``images``: how large images may be, and where they may be fetched.
    """

    def __init__(
        self,
        job: JobSpec,
        engine: RowEngine,
        now_s: Callable[[], float],
        slots: asyncio.Semaphore | None = None,
        hints: Callable[[JobSpec], SchedulingHint] = JobSpec.hint,
        images: ImageBounds | None = None,
    ) -> None:
        self._job = job
        self._reader = ImageReader(job.source.uri, job.rules, images or ImageBounds())
        self._engine = engine
        self._now_s = now_s
        self._hints = hints
        self._slots = slots or asyncio.Semaphore(engine.concurrency)

    async def answer(self, row_id: int, values: Mapping[str, object], text: str | TextProblem | None, attempts: int, tag: str) -> Row:
        """``values``: the row's columns; ``text``: its text cell, None where the task reads no text column. Raises `EngineGone`."""
        began_s = self._now_s()
        attempt = RowAttempt(self._job, self._engine, row_id, tag, self._slots, self._hints)
        outcome = RowOutcome()
        try:
            if isinstance(text, TextProblem):
                raise RowError(text.code, text.message)
            if self._job.endpoint is not None:
                await self._respond(attempt, self._job.endpoint, text, outcome)
            else:
                outcome.values = await self._answer(attempt, values, text, outcome)
        except RowError as error:
            outcome.error = error
        except (EngineGone, HarvesterError):
            raise
        except Exception as error:  # a bug that one row triggers fails that row; the job is stopped where many fail
            log.exception("row_bug job=%s row=%d", self._job.id, row_id)
            outcome.error = RowError("unexpected", f"{type(error).__name__}: {storable(' '.join(str(error).split()))[:500]}")
        if outcome.error is not None:
            outcome.values = {**outcome.values, **reasoning_value(self._job.task, attempt.tally.reasoning)}
        return self._row(row_id, attempts, began_s, attempt.tally, outcome)

    async def _respond(self, attempt: RowAttempt, endpoint: str, text: str | None, outcome: RowOutcome) -> None:
        """Answer a row that is itself an API request. Its output is the whole body of the response, also of a refusal."""
        if text is None:
            raise RowError("null_text", "the request has no body")
        done = await attempt.ask(ApiCall(endpoint, json.loads(text), self._job.max_tokens))
        body = storable(done.text)
        outcome.values = {OUTPUT: body}
        if done.status_code >= 400:
            raise _refusal(done.status_code, body)

    async def _answer(
        self, attempt: RowAttempt, values: Mapping[str, object], text: str | None, outcome: RowOutcome
    ) -> Mapping[str, object]:
        for name, cell in values.items():
            if isinstance(cell, TextProblem) and name not in self._job.task.images:
                raise RowError(cell.code, f"column {name}: {cell.message}")
        if self._job.task.images:
            attempt.show(await asyncio.to_thread(self._images, values, text))
        messages = self._messages(attempt, values, text)
        if attempt.surely_fits(messages):
            return (await attempt.answer(messages)).values
        if text is not None and self._job.on_long is OnLong.TRUNCATE:
            return await self._answer_head(attempt, values, text, outcome)
        # Without a text column, none is known to be the one to shorten.
        tokens = await attempt.count(messages) if text is None else await self._measured(attempt, values, text)
        if tokens <= attempt.budget_tokens:
            return (await attempt.answer(messages)).values
        if text is None or self._job.on_long is OnLong.ERROR:
            raise _too_long(tokens, attempt.budget_tokens)
        reading = await read_in_parts(self._job, attempt, values, text)
        outcome.parts, outcome.truncated = reading.parts, reading.was_cut
        return reading.answer.values

    async def _answer_head(self, attempt: RowAttempt, values: Mapping[str, object], text: str, outcome: RowOutcome) -> Mapping[str, object]:
        """The answer for as much of the text as fits."""
        result = await fit(text, self._counter(attempt, values), attempt.budget_tokens)
        outcome.truncated = result.truncated
        return (await attempt.answer(self._messages(attempt, values, result.text))).values

    async def _measured(self, attempt: RowAttempt, values: Mapping[str, object], text: str) -> int:
        """Tokens of the prompt; of one that is far too long, those of a part that is too long too."""
        return (await measure(text, self._counter(attempt, values), attempt.budget_tokens))[1]

    def _counter(self, attempt: RowAttempt, values: Mapping[str, object]) -> Count:
        """Counts the tokens of the prompt with a text in place of the row's."""
        return lambda text: attempt.count(self._messages(attempt, values, text))

    def _images(self, values: Mapping[str, object], text: str | None) -> tuple[str, ...]:
        """Of the row, in the order of the task's columns. Reads files; raises `RowError` naming the column of one that is bad."""
        column = self._job.column
        cells = values if column is None or text is None else {**values, column: text}
        return tuple(self._reader.address(name, cells.get(name)) for name in self._job.task.images)

    def _messages(self, attempt: RowAttempt, values: Mapping[str, object], text: str | None) -> tuple[Message, ...]:
        column = self._job.column
        row = values if column is None or text is None else {**values, column: text}
        return build_messages(self._job.task, column, row, attempt.marks)

    def give_up(self, row_id: int, begun: int, lost: int) -> Row:
        """The result of a row that was begun ``begun`` times, ``lost`` of them in an engine that died: it seems to be what kills it."""
        error = RowError("engine_lost", f"the engine was lost {lost} times while this row was in work")
        return self._row(row_id, begun, self._now_s(), Tally(), RowOutcome(error=error))

    def _row(self, row_id: int, attempts: int, began_s: float, tally: Tally, outcome: RowOutcome) -> Row:
        """The result of a row: its values or its error, and its usage."""
        error, ended_s = outcome.error, self._now_s()
        return Row(
            row_id=row_id,
            values=dict(outcome.values),
            status="ok" if error is None else "error",
            error_code=error.code if error else None,
            error_message=error.message if error else None,
            raw_output=tally.raw_output if error else None,
            finish_reason=tally.finish_reason,
            usage=tally.usage,
            attempts=attempts,
            requests=tally.requests,
            parts=outcome.parts,
            latency_ms=max(0.0, ended_s - began_s) * 1000.0,
            truncated=outcome.truncated,
            completed_at_s=ended_s,
        )


def _too_long(tokens: int, budget_tokens: int) -> RowError:
    return RowError(
        "text_too_long",
        f"with its text the prompt has {tokens} tokens or more, and there is room for {budget_tokens}; "
        "shorten it, or submit with --on-long split or truncate",
    )


def _refusal(status_code: int, body: str) -> RowError:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, KeyError):
        message = body
    return RowError(f"{HTTP}{status_code}", " ".join(str(message).split())[:500])
