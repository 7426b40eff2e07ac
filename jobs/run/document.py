"""A text too long for the model's context, answered part by part: each part is a request of its own, then their answers are combined."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.access.marks import Marks
from jobs.engine import EngineGone, Message, RowError
from jobs.longtext.combine import combining, grouped, joined
from jobs.longtext.split import split
from jobs.run.attempt import CheckedAnswer, RowAttempt
from jobs.spec import JobSpec
from jobs.tasks.spec import Task
from jobs.tasks.template import build_messages

Build = Callable[[str], tuple[Message, ...]]  # a text -> the messages that hold it


@dataclass(frozen=True, slots=True)
class PartsAnswer:
    """``parts``: of the text; ``was_cut``: answers of parts were too long to be combined whole."""

    answer: CheckedAnswer
    parts: int
    was_cut: bool


async def read_in_parts(job: JobSpec, attempt: RowAttempt, values: Mapping[str, object], text: str) -> PartsAnswer:
    """The answer for the whole of ``text``; one request where it fits. ``values`` are the row's other columns.

    The parts are asked for at once, as far as there are slots; so are the groups of a level of combining. Raises `RowError` naming the part
    that could not be answered, and `EngineGone`.
    """
    build = _builder(job, job.task, values, attempt.marks)
    parts = await split(text, _counter(attempt, build), attempt.budget_tokens)
    if len(parts) == 1:
        return PartsAnswer(await attempt.answer(build(parts[0])), 1, False)
    answers = await _all(attempt, [build(part) for part in parts], "part")
    combine = _builder(job, combining(job.task, job.column), values, attempt.marks)
    was_cut = False
    while len(answers) > 1:
        groups, cut = await grouped([answer.text for answer in answers], _counter(attempt, combine), attempt.budget_tokens)
        was_cut |= cut
        alone = answers[-1:] if len(groups[-1]) == 1 else []  # it waits for the next level
        several = groups[: len(groups) - len(alone)]
        answers = [*await _all(attempt, [combine(joined(group)) for group in several], "combined group"), *alone]
    return PartsAnswer(answers[0], len(parts), was_cut)


def _builder(job: JobSpec, task: Task, values: Mapping[str, object], marks: Marks) -> Build:
    column = job.column
    assert column is not None, "a job that splits has a text column"
    return lambda text: build_messages(task, column, {**values, column: text}, marks)


def _counter(attempt: RowAttempt, build: Build) -> Callable[[str], Awaitable[int]]:
    return lambda text: attempt.count(build(text))


async def _all(attempt: RowAttempt, prompts: Sequence[tuple[Message, ...]], what: str) -> list[CheckedAnswer]:
    """The answers in order. The first that fails ends the others, in the engine too."""

    async def one(number: int, messages: tuple[Message, ...]) -> CheckedAnswer:
        try:
            return await attempt.answer_one_of_many(messages)
        except RowError as error:
            raise RowError(error.code, f"{what} {number} of {len(prompts)}: {error.message}") from error

    tasks: list[asyncio.Task[CheckedAnswer]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, messages)) for number, messages in enumerate(prompts, 1)]
    except ExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(errors: ExceptionGroup[Any]) -> BaseException:
    """The error to raise: `EngineGone` if it is among them, because that explains the others."""
    gone = errors.subgroup(EngineGone)
    return (gone or errors).exceptions[0]
