"""Columns of a job: which hold what the prompt names, which one holds the text."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from connectors.errors import ColumnError
from jobs.errors import did_you_mean
from jobs.spec import JobSpec
from jobs.tasks.spec import Task
from jobs.tasks.template import TEXT_PLACE, places

# Names that say a column holds the text, the plainest first.
_TEXT_NAMES = ("text", "content", "document", "body", "prompt", "message", "review", "article")
_SHOWN_NAMES = 20


def task_places(task: Task) -> tuple[str, ...]:
    """Places of the system and user message, in order, each once."""
    return tuple(dict.fromkeys((*places(task.system or ""), *places(task.prompt))))


def combined_places(task: Task) -> tuple[str, ...]:
    """Places of ``combine`` that are columns: ``{text}`` stands for the answers of the parts there."""
    return tuple(place for place in places(task.combine or "") if place != TEXT_PLACE)


def columns_needed(spec: JobSpec) -> tuple[str, ...]:
    """Columns to read for a row: those of the prompt, its images, then those kept, each once."""
    text = () if spec.column is None else (spec.column,)
    named = (name for name in task_places(spec.task) if name != TEXT_PLACE or spec.column is None)
    return tuple(dict.fromkeys((*text, *named, *combined_places(spec.task), *spec.task.images, *spec.keep)))


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether the cells of an image column are the images themselves."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def check_image_column(schema: pa.Schema, name: str) -> None:
    """Raise `ColumnError` where the source has no such column, or one that can neither hold nor name images."""
    check_column(schema, name, "--image")
    kind = schema.field(name).type
    if not holds_bytes(kind) and not _is_text(kind):
        raise ColumnError(f"--image names column {name} of type {kind}; give one of bytes, paths or addresses")


def check_column(schema: pa.Schema, name: str, use: str) -> None:
    """Raise `ColumnError` where the source has no such column; ``use`` says who asks for it."""
    if not schema.get_all_field_indices(name):  # `schema.names` is made anew at each access
        near = did_you_mean(name, schema.names, "its columns")
        raise ColumnError(f"{use} names column {name}, which the source does not have{near}{_listed(schema, near)}")


def _listed(schema: pa.Schema, near: str) -> str:
    if near.startswith("; its columns"):
        return ""
    more = ", ..." if len(schema.names) > _SHOWN_NAMES else ""
    return f" its columns: {', '.join(schema.names[:_SHOWN_NAMES])}{more}"


def text_columns(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if _is_text(field.type)]


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def pick_column(schema: pa.Schema, task: Task, given: str | None) -> tuple[str | None, str | None]:
    """The text column, and a sentence for the user where it was chosen among the columns of the source.

    ``{text}`` stands for the text column, which is also the one that is cut where a row is too long for the model. It is the column
    ``given``. Else, for a prompt that names its columns, it is the text column among those; for any other, the text column of the source.
    Several candidates are decided by name. Where that decides nothing, a prompt that names its columns has no text column (None); any
    other raises `ColumnError`, as does a column that does not exist.
    """
    named = task_places(task)
    for place in named:
        if place != TEXT_PLACE:
            check_column(schema, place, "the prompt")
    for place in combined_places(task):
        check_column(schema, place, "the task's combine")
    if given is not None:
        check_column(schema, given, "--column")
        if TEXT_PLACE not in named and given not in named:
            raise ColumnError(f"the prompt does not use column {given}; write {{text}} or {{{given}}} into it, or leave --column out")
        return given, None
    candidates = text_columns(schema)
    if TEXT_PLACE not in named:
        among = [name for name in candidates if name in named]
        return (among[0] if len(among) == 1 else _by_name(among)), None
    return _text_column(schema, candidates)


def _text_column(schema: pa.Schema, candidates: Sequence[str]) -> tuple[str, str]:
    if not candidates:
        kinds = ", ".join(f"{field.name} {field.type}" for field in list(schema)[:_SHOWN_NAMES])
        raise ColumnError(f"no column of the source holds text ({kinds}); name one with --column, its values are written out as text")
    if len(candidates) == 1:
        return candidates[0], f"The text is in column {candidates[0]}, the only text column."
    chosen = _by_name(candidates)
    if chosen is None:
        raise ColumnError(f"several columns hold text: {', '.join(candidates[:_SHOWN_NAMES])}; name the one to use with --column")
    others = ", ".join(name for name in candidates if name != chosen)
    return chosen, f"The text is in column {chosen}, by its name; --column chooses another ({others})."


def _by_name(candidates: Sequence[str]) -> str | None:
    """The column with the plainest text name. Exact spelling wins over another case of the same name."""
    for name in _TEXT_NAMES:
        matches = [column for column in candidates if column.lower() == name]
        if name in matches or len(matches) == 1:
            return name if name in matches else matches[0]
    return None
