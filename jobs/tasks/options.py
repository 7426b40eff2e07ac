"""Options of a task: what a user gives with a job, brought into the type that the task file asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from jobs.errors import TaskError, did_you_mean
from jobs.frozen import Frozen


class OptionType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"


_TAKES = {
    OptionType.INTEGER: "a whole number",
    OptionType.NUMBER: "a number",
    OptionType.BOOLEAN: "true or false",
    OptionType.LIST: "a list, like a,b",
    OptionType.OBJECT: "a JSON object",
}
_OF_DEFAULT = {bool: OptionType.BOOLEAN, int: OptionType.INTEGER, float: OptionType.NUMBER, list: OptionType.LIST, dict: OptionType.OBJECT}
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


class TaskOption(Frozen):
    """What a user gives with a job. An option that is neither required nor has a default is null where it is not given."""

    description: str = ""
    type: OptionType | None = Field(default=None, description="Null: that of the default, else of the field it fills, else text.")
    required: bool = False
    default: Any = None

    def type_in(self, field: OptionType | None) -> OptionType:
        """``field``: the type of the field that holds nothing but this option; None where it stands within text."""
        return self.type or field or _OF_DEFAULT.get(type(self.default), OptionType.TEXT)


def option_values(
    task: str, options: Mapping[str, TaskOption], fields: Mapping[str, OptionType], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Every option of ``task`` with its value, its default, or None. ``fields``: see `TaskOption.type_in`, by option.

    A value given as None counts as not given; text is converted to the option's type. Raises `TaskError` for an unknown option, a missing
    one, and a value of another type.
    """
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in options:
            raise TaskError(f"task {task} has no option {name}{_known(name, options)}")
    for name, option in options.items():
        if option.required and values.get(name) in (None, "", [], {}):
            wanted = f": {option.description}" if option.description else ""
            raise TaskError(f"task {task} needs option {name}{wanted}; give it with --option {name}=VALUE")
    return {
        name: fitted(values[name], option.type_in(fields.get(name)), f"task {task}: option {name}") if name in values else option.default
        for name, option in options.items()
    }


def _known(name: str, options: Mapping[str, TaskOption]) -> str:
    near = did_you_mean(name, options, "its options")
    return near if near.startswith("; its options") else f"{near} Its options: {', '.join(options)}"


def fitted(value: Any, kind: OptionType, origin: str) -> Any:
    """``value`` as type ``kind``; text is converted. Raises `TaskError` naming ``origin`` where that is not possible."""
    try:
        read = _read(value.strip(), kind) if isinstance(value, str) and kind is not OptionType.TEXT else value
    except ValueError:
        read = None
    if not _is(read, kind):
        raise TaskError(f"{origin} takes {_TAKES[kind]}, given {str(value)[:80]!r}")
    return read


def _read(text: str, kind: OptionType) -> Any:
    match kind:
        case OptionType.INTEGER:
            return int(text)
        case OptionType.NUMBER:
            return int(text) if text.lstrip("+-").isdecimal() else float(text)
        case OptionType.BOOLEAN:
            return _BOOLEANS.get(text.lower())
        case OptionType.LIST:
            return [entry.strip() for entry in text.split(",")]
        case _:
            return json.loads(text)


def _is(value: Any, kind: OptionType) -> bool:
    match kind:
        case OptionType.TEXT:
            return True  # any value is written out as text
        case OptionType.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case OptionType.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case OptionType.BOOLEAN:
            return isinstance(value, bool)
        case OptionType.LIST:
            return isinstance(value, list | tuple)
        case OptionType.OBJECT:
            return isinstance(value, dict)
