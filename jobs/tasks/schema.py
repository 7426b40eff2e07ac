"""JSON schemas of a task's answers: the checks that they must pass, and how their references are resolved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

import jsonschema

from jobs.access.limits import pattern_cost
from jobs.access.pattern import matching
from jobs.errors import TaskError
from jobs.tasks.validator import NAMED, PLAIN

MAX_VALUES = 100_000  # of a schema with its references followed, and letters of its patterns: columns and validation grow with them
_REFERENCES = frozenset({"$ref", "$dynamicRef"})


def check_schema(schema: object, origin: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """Return the schema if it is a JSON schema of an object with at least one property, and all its references lead into itself.

    Properties become columns, so none may be named like another or like one of ``reserved`` (both without regard to case, as SQL
    compares names). Patterns must be of those that `matching` takes. With each reference replaced by what it leads to, the schema may hold
    at most `MAX_VALUES` values. Raises `TaskError` naming ``origin`` and the place in the schema.
    """
    if not isinstance(schema, dict):
        raise TaskError(f"{origin}: a JSON schema is an object, given {type(schema).__name__}; e.g. {_EXAMPLE}")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        _Walk(schema, origin).check()
    except RecursionError as error:
        raise TaskError(f"{origin}: the schema is nested too deeply to be checked; make it flatter") from error
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise TaskError(f"{origin}: not a JSON schema{f' at {where}' if where else ''}: {_one_line(error.message)}") from error
    properties = schema.get("properties")
    if schema.get("type") != "object" or not properties:
        raise TaskError(f"{origin}: the schema must have type object and at least one property; e.g. {_EXAMPLE}")
    _check_names(properties, origin, reserved)
    return schema


_EXAMPLE = '{"type": "object", "properties": {"title": {"type": "string"}}}'


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:197]}..."


def _check_names(properties: dict[str, Any], origin: str, reserved: Collection[str]) -> None:
    seen: dict[str, str] = {}
    taken = {name.lower() for name in reserved}
    for name in properties:
        if not name.strip():
            raise TaskError(f"{origin}: a property has an empty name; each property becomes a column and needs one")
        if name.lower() in taken:
            raise TaskError(f"{origin}: property {name} has the name of a result column; rename it, e.g. to {name}_value")
        if name.lower() in seen:
            raise TaskError(f"{origin}: properties {seen[name.lower()]} and {name} would be one column in SQL; rename one")
        seen[name.lower()] = name


class _Walk:
    """Visits a schema's subschemas, with each reference replaced by what it leads to. A reference within what it leads to ends there."""

    def __init__(self, root: dict[str, Any], origin: str) -> None:
        self._root = root
        self._origin = origin
        self._values = 0
        self._patterns: set[str] = set()
        self._keywords: set[str] = set()

    def check(self) -> None:
        """Raises `TaskError` for a reference that leads nowhere, too many values, or what no answer can be checked by in linear time."""
        self._visit(self._root, frozenset())
        for pattern in sorted(self._patterns):
            self._check_pattern(pattern)
        if {"patternProperties", "unevaluatedProperties"} <= self._keywords:
            raise TaskError(
                f"{self._origin}: unevaluatedProperties cannot be checked in a schema with patternProperties; use additionalProperties"
            )

    def _visit(self, node: object, followed: frozenset[str]) -> None:
        self._count(1)
        if isinstance(node, list):
            for entry in node:
                self._visit(entry, followed)
        elif isinstance(node, dict):
            self._note(node)
            for key, value in node.items():
                self._visit_keyword(key, value, followed)

    def _visit_keyword(self, key: str, value: Any, followed: frozenset[str]) -> None:
        if key in _REFERENCES and isinstance(value, str):
            if value not in followed:
                self._visit(self._target(value), followed | {value})
        elif key in PLAIN:
            self._count(len(value) if isinstance(value, list) else 1)
        else:
            self._visit(list(value.values()) if key in NAMED and isinstance(value, dict) else value, followed)

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise TaskError(
                f"{self._origin}: the schema has more than {MAX_VALUES:,} values once each $ref is replaced by what it leads to, "
                "and the counted repeats of patterns are written out; use fewer of them within each other"
            )

    def _note(self, subschema: dict[str, Any]) -> None:
        self._keywords |= subschema.keys()
        named = subschema.get("patternProperties")
        patterns = [subschema.get("pattern"), *(named if isinstance(named, dict) else ())]
        for pattern in (one for one in patterns if isinstance(one, str)):
            self._count(pattern_cost(pattern))
            self._patterns.add(pattern)

    def _target(self, reference: str) -> object:
        try:
            if _is_plain(reference):
                raise LookupError(reference)
            return follow(self._root, reference)
        except LookupError as error:
            raise TaskError(
                f"{self._origin}: $ref {reference} leads nowhere; refer to a place within the schema, like #/$defs/item"
            ) from error

    def _check_pattern(self, pattern: str) -> None:
        try:
            matching(pattern, [""])
        except ValueError as error:
            raise TaskError(
                f"{self._origin}: pattern {_one_line(pattern)!r} cannot be matched in linear time: {_one_line(str(error))}; "
                "write it without lookaround, backreferences, \\u escapes and counts above 1,000"
            ) from error


def _is_plain(reference: str) -> bool:
    """Whether it leads into values that are no schemas, which an `AnswerValidator` leaves as they are."""
    by_name = False
    for part in unquote(reference).split("/")[1:]:
        if part in PLAIN and not by_name:
            return True
        by_name = part in NAMED and not by_name
    return False


def follow(root: dict[str, Any], reference: str) -> object:
    """The subschema at ``#/a/b`` (a JSON pointer). Raises `LookupError` for anything else."""
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    node: object = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node[key]
        elif isinstance(node, list) and key.isdecimal():
            node = node[int(key)]
        else:
            raise LookupError(reference)
    return node
