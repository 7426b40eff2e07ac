"""One attempt at a row: its requests to the engine, their usage, and a second request where the answer is invalid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.access.marks import UNMARKED, Marks
from jobs.engine import ApiCall, Completion, Message, Prompt, Rendering, RowEngine, RowError, RowRequest
from jobs.hint import SchedulingHint
from jobs.spec import JobSpec
from jobs.tasks.answer import check_thought, parse_answer, reasoning_value
from jobs.tasks.spec import AnswerKind
from jobs.usage import NONE_USED, Usage

WINDOW_ROWS = 64  # rows within which the engine may put those with a common prefix together
TEMPLATE_TOKENS = 64  # more than any chat template adds around two messages
SHOWN_CHARS = 600  # of a wrong answer that does not fit beside the prompt


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """``text``: the answer as it came; ``values``: its values for the task's columns."""

    text: str
    values: dict[str, object]


@dataclass(slots=True)
class Tally:
    """What the requests of one row took together."""

    requests: int = 0
    usage: Usage = NONE_USED
    finish_reason: str | None = None  # of the request that ended last
    reasoning: str | None = None  # of that request
    raw_output: str | None = None  # the last invalid answer; None once one is valid

    def add(self, done: Completion) -> None:
        self.usage += done.usage
        self.finish_reason, self.reasoning = done.finish_reason, done.reasoning


class RowAttempt:
    """Makes the requests of one row. ``tag`` identifies the attempt; ``slots`` bounds the requests of rows that make several at once."""

    def __init__(
        self, job: JobSpec, engine: RowEngine, row_id: int, tag: str, slots: asyncio.Semaphore, hints: Callable[[JobSpec], SchedulingHint]
    ) -> None:
        self.tally = Tally()
        self.budget_tokens = engine.context_tokens - job.task.most_tokens  # of a prompt
        # A text to embed is in no chat, so no mark of one ends it.
        self.marks: Marks = UNMARKED if job.task.answer is AnswerKind.EMBEDDING else engine.marks
        self._job = job
        self._engine = engine
        self._slots = slots
        self._hints = hints
        self._window = row_id // WINDOW_ROWS
        self._request_id = f"{job.id}-{row_id}-{tag}"
        self._prompt = Prompt(
            messages=(),
            max_tokens=job.task.most_tokens,
            temperature=job.task.sampling_temperature,
            choices=job.task.labels if job.task.answer is AnswerKind.CHOICE else None,
            json_schema=job.task.json_schema if job.task.answer is AnswerKind.JSON else None,
            rendering=Rendering(job.task.thinking_tokens, job.task.chat_template_kwargs, job.task.answer is AnswerKind.EMBEDDING),
            adapter=job.task.adapter,
        )

    def show(self, images: tuple[str, ...]) -> None:
        """From now on each prompt shows them; see `Rendering.images`."""
        self._prompt = replace(self._prompt, rendering=replace(self._prompt.rendering, images=images))

    async def count(self, messages: tuple[Message, ...]) -> int:
        """Tokens of the rendered prompt."""
        return await self._engine.count_tokens(messages, self._prompt.rendering)

    def surely_fits(self, messages: tuple[Message, ...]) -> bool:
        """Whether the prompt fits, judging by its bytes: a token is at least one, except those of images."""
        most = sum(len(message["content"].encode("utf-8", "replace")) for message in messages) + TEMPLATE_TOKENS
        return not self._prompt.rendering.images and most <= self.budget_tokens

    async def fits(self, messages: tuple[Message, ...]) -> bool:
        return self.surely_fits(messages) or await self.count(messages) <= self.budget_tokens

    async def answer_one_of_many(self, messages: tuple[Message, ...]) -> CheckedAnswer:
        """`answer`, when there is a slot for it."""
        async with self._slots:
            return await self.answer(messages)

    async def answer(self, messages: tuple[Message, ...]) -> CheckedAnswer:
        """A valid answer. An invalid one is asked for once more, with what is wrong with it.

        Raises the `RowError` of the second answer, which `Tally.raw_output` then holds, and `EngineGone`. Thinking without an answer is
        not asked for again: the result would be the same.
        """
        done = await self._thought(messages)
        try:
            return self._checked(done)
        except RowError as error:
            again = await self._correction(messages, done.text, error)
            self.tally.raw_output = done.text
            if again is None:
                raise
        done = await self._thought(again)
        try:
            answer = self._checked(done)
        except RowError as error:
            self.tally.raw_output = done.text
            raise RowError(error.code, f"asked twice: {error.message}") from error
        self.tally.raw_output = None
        return answer

    async def _thought(self, messages: tuple[Message, ...]) -> Completion:
        """The engine's answer. Raises `RowError` where the model thought and did not answer."""
        done = await self.ask(replace(self._prompt, messages=messages))
        check_thought(self._job.task, done.text, done.finish_reason)
        return done

    def _checked(self, done: Completion) -> CheckedAnswer:
        values = parse_answer(self._job.task, done.text, done.finish_reason)
        return CheckedAnswer(done.text, values | reasoning_value(self._job.task, done.reasoning))

    async def ask(self, content: Prompt | ApiCall) -> Completion:
        """The engine's answer to one request, added to the tally. Raises what `RowEngine.complete` raises."""
        number, self.tally.requests = self.tally.requests, self.tally.requests + 1
        name = self._request_id if number == 0 else f"{self._request_id}-{number}"
        hint = self._hints(self._job).in_window(self._window)  # as the ledger said last
        done = await self._engine.complete(RowRequest(name, content, hint))
        if isinstance(content, Prompt):  # the answer may quote a mark that was parted
            reasoning = None if done.reasoning is None else self.marks.whole(done.reasoning)
            done = replace(done, text=self.marks.whole(done.text), reasoning=reasoning)
        self.tally.add(done)
        return done

    async def _correction(self, messages: tuple[Message, ...], wrong: str, error: RowError) -> tuple[Message, ...] | None:
        """The conversation that asks again, the wrong answer shortened where it does not fit; None where nothing fits."""
        fault = self.marks.parted(error.message)  # may quote the answer
        demand: Message = {"role": "user", "content": f"That cannot be used: {fault}. {_wish(self._job)} Answer with that only."}
        for shown in (wrong, wrong[:SHOWN_CHARS], wrong[: SHOWN_CHARS // 10]):
            asked: tuple[Message, ...] = (*messages, {"role": "assistant", "content": self.marks.parted(shown)}, demand)
            if await self.fits(asked):
                return asked
        return None


def _wish(job: JobSpec) -> str:
    if job.task.answer is AnswerKind.CHOICE:
        return f"Give one of these labels, spelt exactly so: {', '.join(job.task.labels or ())}."
    return f"Give one whole JSON object that follows the schema, within {job.task.max_tokens} tokens."
