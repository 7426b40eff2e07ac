"""Embedding tasks: the fields that they cannot have, and the check that a model can run a task."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from jobs.errors import TaskError
from jobs.tasks.spec import AnswerKind, Task


class Gives(StrEnum):
    """What a served model makes of a prompt."""

    TEXT = "text"
    EMBEDDING = "embedding"


def check_embedding(task: Task) -> None:
    """Raises `TaskError` where an embedding task has a field that only text answers use."""
    if task.answer is not AnswerKind.EMBEDDING:
        return
    wrong = {
        "system": task.system,
        "combine": task.combine,
        "thinking": task.thinking not in (None, "off"),
        "chat_template_kwargs": task.chat_template_kwargs,
        "images": task.images,
    }
    for name, value in wrong.items():
        if value:
            raise TaskError(f"task {task.name} has {name} and gives embeddings, which have no conversation; leave {name} out")


def check_model(task: Task, model: str, gives: Collection[Gives] | None) -> None:
    """Raises `TaskError` where ``model`` cannot give the task's kind of answer. ``gives``: None where that is not known."""
    wanted = Gives.EMBEDDING if task.answer is AnswerKind.EMBEDDING else Gives.TEXT
    if gives is None or wanted in gives:
        return
    if wanted is Gives.EMBEDDING:
        raise TaskError(f"{model} makes no embeddings, so task {task.name} cannot run on it; use another task, or serve an embedding model")
    instead = "use --task embed, or serve" if Gives.EMBEDDING in gives else "serve"
    raise TaskError(f"{model} writes no text, so task {task.name} cannot run on it; {instead} a model that writes")
