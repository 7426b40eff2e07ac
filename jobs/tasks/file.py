"""Task files: a task as a person writes it, with options left open, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from jobs.errors import TaskError, did_you_mean
from jobs.frozen import Frozen
from jobs.tasks.options import OptionType, TaskOption, fitted
from jobs.tasks.spec import Adapter, AnswerKind, ImageColumns, TemplateKwargs, Thinking
from jobs.tasks.template import TEXT_PLACE, parse, places


class TaskFile(Frozen):
    """Content of a task file: a `jobs.tasks.spec.Task` whose fields may hold ``{option}`` places."""

    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    system: str | None = None
    prompt: str = Field(min_length=1)
    combine: str | None = Field(default=None, description="Prompt over the answers for the parts of a long text; None makes one.")
    answer: AnswerKind = AnswerKind.TEXT
    labels: Any = Field(default=None, description='A list, or "{option}".')
    json_schema: Any = Field(default=None, description='A JSON schema, or "{option}".')
    max_tokens: int = Field(default=128, ge=1)
    temperature: float | None = Field(
        default=None, ge=0.0, le=2.0, description="None: 0, and the model's own where it thinks: greedy thinking repeats itself."
    )
    thinking: Thinking | None = Field(default=None, description="off, on, or the most tokens of it. None: off where the model can.")
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    images: ImageColumns = Field(default=(), description="Columns that hold images, which the prompt shows.")
    adapter: Adapter | None = Field(default=None, description="LoRA adapter of the server that answers.")
    options: dict[str, TaskOption] = Field(default_factory=dict)

    def option_fields(self) -> dict[str, OptionType]:
        """Type of each option that fills a whole typed field, ``labels`` or ``json_schema``, by option name."""
        fields = ((self.labels, OptionType.LIST), (self.json_schema, OptionType.OBJECT))
        return {field[1:-1]: kind for field, kind in fields if isinstance(field, str)}

    def inline(self) -> dict[str, Any]:
        """As a `jobs.spec.JobRequest` carries it in ``task_inline``."""
        return self.model_dump(mode="json", exclude_unset=True)


def parse_task(values: Mapping[str, Any], origin: str) -> TaskFile:
    """Check a task file's content. Raises `TaskError` naming ``origin``, the key, and the nearest valid one."""
    try:
        task = TaskFile.model_validate(dict(values))
    except ValidationError as error:
        raise TaskError(_explain(error, origin)) from error
    used: set[str] = set()
    for key, template in (("prompt", task.prompt), ("system", task.system), ("combine", task.combine)):
        if template is not None:
            parse(template, f"{origin}: {key}")
            used |= set(places(template))
    used |= {field[1:-1] for field in (task.labels, task.json_schema) if isinstance(field, str)}
    for name, option in task.options.items():
        _check_option(name, option, used, origin)
    return task


def _check_option(name: str, option: TaskOption, used: set[str], origin: str) -> None:
    if name == TEXT_PLACE:
        raise TaskError(f"{origin}: an option cannot be named {TEXT_PLACE}, which stands for the job's text column; rename it")
    if name not in used:
        raise TaskError(f"{origin}: option {name} is never used; write {{{name}}} into a template, or remove it")
    if option.required and option.default is not None:
        raise TaskError(f"{origin}: option {name} is required and has default {option.default!r}; remove one of the two")
    if option.type is not None and option.default is not None:
        fitted(option.default, option.type, f"{origin}: default of option {name}")


def _explain(error: ValidationError, origin: str) -> str:
    # A misspelt key is unknown and missing at once; the unknown one says more.
    first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        keys = TaskOption.model_fields if first["loc"][0] == "options" else TaskFile.model_fields
        return f"{origin}: unknown key {where}{did_you_mean(str(first['loc'][-1]), keys, 'known keys')}"
    if first["type"] == "missing":
        return f"{origin}: key {where} is missing; a task needs at least a prompt"
    return f"{origin}: {where}: {first['msg']} (given {str(first['input'])[:80]!r})"
