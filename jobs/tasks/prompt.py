"""The messages of one row."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.engine import Message
from jobs.tasks.file import TEXT_PLACE
from jobs.tasks.spec import Task
from jobs.tasks.template import render


def build_messages(task: Task, column: str | None, row: Mapping[str, object]) -> tuple[Message, ...]:
    """System message, where the task has one, and user message, with the row's values in their places.

    ``column`` is the job's text column, which ``{text}`` stands for even where a column is named ``text``; None leaves ``{text}`` to the
    column of that name. Raises `ColumnError` where ``row`` lacks a column.
    """
    values = row if column is None or column not in row else {**row, TEXT_PLACE: row[column]}
    system: tuple[Message, ...] = () if task.system is None else ({"role": "system", "content": render(task.system, values)},)
    return (*system, {"role": "user", "content": render(task.prompt, values)})
