"""One row's way where it is an OpenAI request: its JSON body → the engine → the response, whole, as the row's output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from connectors.text import TextProblem
from jobs.engine import ApiRequest, Engine, RowError
from jobs.hint import SchedulingHint
from jobs.result import Row
from jobs.run.request import WINDOW_ROWS, Tally
from jobs.run.row import finished_row, lost_row
from jobs.spec import JobSpec
from jobs.tasks.answer import OUTPUT
from jobs.tasks.shape import storable

HTTP = "http_"  # error codes of requests that were answered with a status of 400 or more: ``http_400``


class ApiRowWork:
    """`jobs.run.row.RowWork` for a job with an ``endpoint``. ``now_s`` is the wall clock; ``hints``: how a job stands among others."""

    def __init__(self, job: JobSpec, engine: Engine, now_s: Callable[[], float], hints: Callable[[JobSpec], SchedulingHint]) -> None:
        assert job.endpoint is not None
        self._job = job
        self._endpoint = job.endpoint
        self._engine = engine
        self._now_s = now_s
        self._hints = hints

    async def answer(self, row_id: int, values: Mapping[str, object], text: str | TextProblem | None, attempts: int, tag: str) -> Row:
        """``text``: the request's body. Raises `EngineGone`."""
        began_s, tally = self._now_s(), Tally()
        if not isinstance(text, str):
            problem = RowError(text.code, text.message) if text is not None else RowError("null_text", "the request has no body")
            return finished_row(row_id, {}, attempts, began_s, self._now_s(), tally, problem)
        answer = await self._engine.respond(
            ApiRequest(
                request_id=f"{self._job.id}-{row_id}-{tag}",
                endpoint=self._endpoint,
                body=json.loads(text),
                hint=self._hints(self._job).in_window(row_id // WINDOW_ROWS),
            )
        )
        tally.requests = 1
        tally.add(answer)
        body = storable(answer.text)
        error = _refusal(answer.status_code, body) if answer.status_code >= 400 else None
        return finished_row(row_id, {OUTPUT: body}, attempts, began_s, self._now_s(), tally, error)

    def give_up(self, row_id: int, begun: int) -> Row:
        return lost_row(row_id, begun, self._now_s())


def _refusal(status_code: int, body: str) -> RowError:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, KeyError):
        message = body
    return RowError(f"{HTTP}{status_code}", " ".join(str(message).split())[:500])
