"""The prompts that jobs send: the project's own task files, rendered as a job renders them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages

_TEXT = "\x00"  # stands for the row's text, with which every task's prompt ends


@dataclass(frozen=True, slots=True)
class Prompt:
    """``system`` message and the part of the user message before the row's text."""

    system: str | None
    before: str


def task_prompt(task: str, options: Mapping[str, Any] | None = None) -> Prompt:
    messages = build_messages(resolve_task(task, options=options), "text", {"text": _TEXT})
    before, after = messages[-1]["content"].split(_TEXT)
    assert not after, f"task {task} does not end with its text"
    return Prompt(messages[0]["content"] if len(messages) > 1 else None, before)
