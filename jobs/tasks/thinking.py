"""Whether a model thinks before it answers a task: what was asked, what the model can, and what becomes of both."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from jobs.errors import TaskError
from jobs.frozen import Frozen
from jobs.tasks.spec import REASONING, Task

ON_TOKENS = 4096  # for `on`; at most half of the context


class ModelThinking(Frozen):
    """What thinking a served model has. ``switches``: arguments of its chat template that turn it on and off."""

    model_config = ConfigDict(extra="ignore")

    thinks: bool = Field(description="Always, or when it is told to.")
    can_stop: bool = Field(description="It answers without thinking when it is told to.")
    has_budget: bool = Field(description="The engine ends its thinking after a number of tokens.")
    switches: tuple[str, ...] = ()


def settled(task: Task, model: str, known: ModelThinking | None, context_tokens: int | None) -> Task:
    """The task with ``thinking`` as a token limit; "off" and None stand for no thinking. ``known``: None where nobody asked the model.

    Where the task does not say, the model answers without thinking if it can. Raises `TaskError` for what the model cannot do.
    """
    wish = task.thinking
    if known is not None:
        _check(task, model, known)
        if wish is None and known.thinks and not known.can_stop:
            wish = "on"
    if wish in (None, "off"):
        return task
    if task.json_schema is not None and REASONING in task.json_schema["properties"]:
        raise TaskError(f"the schema has a property {REASONING}, which is the column of the thinking; rename it, or use --thinking off")
    tokens = wish if isinstance(wish, int) else min(ON_TOKENS, (context_tokens or 2 * ON_TOKENS) // 2)
    return task.model_copy(update={"thinking": tokens})


def _check(task: Task, model: str, known: ModelThinking) -> None:
    named = sorted(set(known.switches) & set(task.chat_template_kwargs))
    if named:
        raise TaskError(f"chat_template_kwargs sets {named[0]}, which turns thinking on and off; use thinking: on, off or a number instead")
    if task.thinking == "off" and known.thinks and not known.can_stop:
        raise TaskError(f"{model} always thinks, so --thinking off cannot work; leave it out")
    if task.thinking not in (None, "off") and not known.thinks:
        raise TaskError(f"{model} does not think: its chat template has no switch for it; leave --thinking out")
    if isinstance(task.thinking, int) and not known.has_budget:
        raise TaskError(f"the thinking of {model} cannot be ended after {task.thinking} tokens; use --thinking on")


def thinking_note(task: Task, model: str, asked: Task) -> str | None:
    """A note for the user where a model thinks although nobody asked it to; else None."""
    if asked.thinking is None and task.thinking_tokens:
        return f"{model} always thinks: up to {task.thinking_tokens:,} tokens before each answer, in column {REASONING}."
    return None
