"""Tasks on a LoRA adapter: which the server has."""

from __future__ import annotations

from collections.abc import Collection

from jobs.errors import TaskError, did_you_mean
from jobs.tasks.spec import Task


def check_adapter(task: Task, model: str, adapters: Collection[str] | None) -> None:
    """Raises `TaskError` where ``model`` is not served with the task's adapter. ``adapters``: None where nobody asked the server."""
    if task.adapter is None or adapters is None or task.adapter in adapters:
        return
    if not adapters:
        raise TaskError(
            f"{model} is served without adapters, so task {task.name} cannot run on {task.adapter[:80]}; name it under adapters in the "
            "server's config, or leave --adapter out"
        )
    raise TaskError(f"{model} has no adapter {task.adapter[:80]!r}{did_you_mean(task.adapter[:80], sorted(adapters), 'its adapters')}")
