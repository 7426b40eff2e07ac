"""Loads tasks by name or path, and resolves them: fills in every option, checks every field."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jobs.config import TwiceError, read_yaml
from jobs.errors import TaskError, did_you_mean
from jobs.result import RESULT_NAMES
from jobs.tasks.embedding import check_embedding
from jobs.tasks.file import TaskFile, parse_task
from jobs.tasks.options import option_values
from jobs.tasks.schema import check_schema
from jobs.tasks.spec import AnswerKind, Task, Thinking
from jobs.tasks.template import TEXT_PLACE, fill, parse, places

_BUILT_IN = Path(__file__).parent / "builtin"


def list_tasks() -> list[TaskFile]:
    """The built-in tasks, by name."""
    return [_read(path) for path in sorted(_BUILT_IN.glob("*.yaml"))]


def load_task(name_or_path: str | Path) -> TaskFile:
    """A built-in task by name, or a task file by path: what holds a ``/`` or ends in .yaml or .yml. Raises `TaskError`."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or "/" in str(name_or_path):
        return _read(Path(os.path.expanduser(path)))  # noqa: PTH111 - the home of an unknown user stays as it is written
    return built_in_task(str(name_or_path), "a task file is given by its path, like ./mine.yaml")


def built_in_task(name: str, hint: str = "a task of your own is given by its content, as task_inline") -> TaskFile:
    """A built-in task. Opens no other file, whatever ``name`` is. Raises `TaskError`."""
    known = sorted(file.stem for file in _BUILT_IN.glob("*.yaml"))
    if name not in known:
        raise TaskError(f"unknown task {name[:80]!r} ({hint}){did_you_mean(name[:80], known, 'built-in tasks')}")
    return _read(_BUILT_IN / f"{name}.yaml")


def _read(path: Path) -> TaskFile:
    try:
        values = read_yaml(path)
    except OSError as error:
        raise TaskError(f"cannot read task file {path}: {error.strerror}; give the path of a YAML file") from error
    except TwiceError as error:
        raise TaskError(f"task file {path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"task file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise TaskError(f"task file {path} holds a {type(values).__name__}; it must be a mapping of keys to values, with a prompt")
    return parse_task({"name": path.stem, **values}, str(path))


def resolve_task(
    name: str,
    *,
    inline: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    thinking: Thinking | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    images: Sequence[str] = (),
    adapter: str | None = None,
) -> Task:
    """The task that a job runs: ``inline`` (a task file's content, named ``name`` unless it names itself) or the built-in ``name``.

    An option given as None counts as not given. ``chat_template_kwargs`` are merged over the file's. The other arguments replace the
    file's values where they are given.
    Raises `TaskError` for an unknown task or option, a missing option, and invalid labels, schemas and templates.
    """
    file = built_in_task(name) if inline is None else parse_task({"name": name, **inline}, f"task {name}")
    values = option_values(file.name, file.options, file.option_fields(), options or {})
    labels = _labels(file, _whole(file.labels, values))
    if labels is not None and file.labels != _whole(file.labels, values):
        values[file.labels[1:-1]] = labels  # "a,b" and ["a", "b"] make the same prompt
    fields = {
        "system": _fill(file, "system", values),
        "prompt": _fill(file, "prompt", values),
        "combine": _combine(file, values),
        "labels": labels,
        "json_schema": _schema(file, _whole(file.json_schema, values)),
    }
    fields["images"] = tuple(images) or file.images
    if not fields["images"] and not any(places(template) for template in (fields["prompt"], fields["system"] or "")):
        raise TaskError(
            f"task {file.name}: the prompt names no column, so every row would ask the same; put {{text}} where the text belongs"
        )
    fields |= {"max_tokens": max_tokens or file.max_tokens, "temperature": file.temperature if temperature is None else temperature}
    fields |= {"thinking": file.thinking if thinking is None else thinking, "adapter": adapter or file.adapter}
    fields |= {"chat_template_kwargs": {**file.chat_template_kwargs, **(chat_template_kwargs or {})}}
    task = Task(name=file.name, description=file.description, answer=file.answer, **fields)
    check_embedding(task)
    return task


def _whole(field: Any, values: Mapping[str, Any]) -> Any:
    """The option's value where ``field`` is nothing but the place of one option; else ``field`` itself."""
    if isinstance(field, str) and field[:1] == "{" and field[1:-1] in values and field[-1:] == "}":
        return values[field[1:-1]]
    return field


def _fill(file: TaskFile, key: str, values: Mapping[str, Any]) -> Any:
    template = getattr(file, key)
    whole = _whole(template, values)
    if whole is not template:
        if not isinstance(whole, str | None) or (key == "prompt" and not whole):
            raise TaskError(f"task {file.name}: {key} must be text, given {str(whole)[:80]!r}")
        parse(whole or "", f"task {file.name}: {key}")
        return whole
    return None if template is None else fill(template, {name: _in_text(value) for name, value in values.items()})


def _combine(file: TaskFile, values: Mapping[str, Any]) -> str | None:
    template: str | None = _fill(file, "combine", values)
    if template is not None and TEXT_PLACE not in places(template):
        raise TaskError(f"task {file.name}: combine lacks {{text}}, which stands for the answers of the parts")
    return template


def _in_text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ", ".join(str(entry) for entry in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _labels(file: TaskFile, given: Any) -> tuple[str, ...] | None:
    if (given is not None) != (file.answer is AnswerKind.CHOICE):
        verb = "has" if given is not None else "lacks"
        raise TaskError(f"task {file.name} {verb} labels and answers with {file.answer}; labels belong to answer: choice, and only there")
    return None if given is None else parse_labels(given, f"task {file.name}")


def _schema(file: TaskFile, given: Any) -> dict[str, Any] | None:
    if (given is not None) != (file.answer is AnswerKind.JSON):
        verb = "has" if given is not None else "lacks"
        raise TaskError(f"task {file.name} {verb} a JSON schema and answers with {file.answer}; json_schema belongs to answer: json")
    return None if given is None else check_schema(given, f"task {file.name}: schema", RESULT_NAMES)


def parse_labels(given: Any, origin: str) -> tuple[str, ...]:
    """Labels from a list, or from text separated by commas. Raises `TaskError` naming ``origin`` and the label."""
    entries = given.split(",") if isinstance(given, str) else given
    if not isinstance(entries, list | tuple):
        raise TaskError(f"{origin}: labels must be a list, given {str(given)[:80]!r}; e.g. positive,negative")
    for entry in entries:
        # YAML reads a bare `yes` or `no` as true or false.
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise TaskError(f'{origin}: label {entry!r} is not text; put it in quotes, e.g. "yes"')
    labels = tuple(str(entry).strip() for entry in entries)
    shown = ", ".join(repr(label) for label in labels)[:120]
    if "" in labels:
        raise TaskError(f"{origin}: label {labels.index('') + 1} is empty in {shown}; give each label a name")
    twice = next((label for label, times in Counter(labels).items() if times > 1), None)
    if twice is not None:
        raise TaskError(f"{origin}: label {twice!r} is given twice; give each label once")
    if len(labels) < 2:
        raise TaskError(f"{origin}: at least two labels are needed, given {shown or 'none'}; e.g. positive,negative")
    return labels
