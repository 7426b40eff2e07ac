"""JSON schemas of a task's answers: the checks that they must pass, and how their references are resolved."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

import jsonschema

from jobs.errors import TaskError


def check_schema(schema: object, origin: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """Return the schema if it is a JSON schema of an object with at least one property, and all its references lead into itself.

    Properties become columns, so none may be named like another or like one of ``reserved`` (both without regard to case, as SQL
    compares names). Raises `TaskError` naming ``origin`` and the place in the schema.
    """
    if not isinstance(schema, dict):
        raise TaskError(f"{origin}: a JSON schema is an object, given {type(schema).__name__}; e.g. {_EXAMPLE}")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise TaskError(f"{origin}: not a JSON schema{f' at {where}' if where else ''}: {_one_line(error.message)}") from error
    properties = schema.get("properties")
    if schema.get("type") != "object" or not properties:
        raise TaskError(f"{origin}: the schema must have type object and at least one property; e.g. {_EXAMPLE}")
    _check_names(properties, origin, reserved)
    for reference in _references(schema):
        try:
            follow(schema, reference)
        except LookupError as error:
            raise TaskError(f"{origin}: $ref {reference} leads nowhere; refer to a place within the schema, like #/$defs/item") from error
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


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


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
