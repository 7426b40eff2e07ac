"""Typed columns of a JSON schema: which Arrow type each property gets, and its answers as values of that type."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from connectors.text import storable
from jobs.tasks.schema import follow


class ColumnKind(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    STRUCT = "struct"
    JSON = "json"  # no one type fits: kept as JSON text


_SCALARS = {
    ColumnKind.STRING: pa.string(),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.NUMBER: pa.float64(),
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.JSON: pa.string(),
}
JSON_MARK = {"harvester": "json"}  # metadata of an Arrow field that holds JSON text
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Shape:
    kind: ColumnKind
    item: Shape | None = None  # of a list
    fields: tuple[tuple[str, Shape], ...] = ()  # of a struct

    def arrow(self) -> pa.DataType:
        if self.kind is ColumnKind.LIST:
            assert self.item is not None
            return pa.list_(self.item.field("item"))
        if self.kind is ColumnKind.STRUCT:
            return pa.struct([shape.field(name) for name, shape in self.fields])
        return _SCALARS[self.kind]

    def field(self, name: str) -> pa.Field:
        """A column, or a part of one. What is kept as JSON text is marked, so that a reader can tell it from text."""
        return pa.field(name, self.arrow(), metadata=JSON_MARK if self.kind is ColumnKind.JSON else None)

    def cell(self, value: Any) -> object:
        """Convert a value that the schema allows to the column's type. Properties the schema does not name are left out.

        Raises `OverflowError` for a number outside int64 or float64.
        """
        if self.kind is ColumnKind.JSON:
            return None if value is None else storable(json.dumps(value, ensure_ascii=False))
        if value is None:
            return None
        if self.kind is ColumnKind.LIST:
            assert self.item is not None
            return [self.item.cell(entry) for entry in value]
        if self.kind is ColumnKind.STRUCT:
            return {name: shape.cell(value.get(name)) for name, shape in self.fields}
        return self._scalar(value)

    def _scalar(self, value: Any) -> object:
        if self.kind is ColumnKind.STRING:
            return storable(value)
        if self.kind is ColumnKind.NUMBER:
            return float(value)
        if self.kind is ColumnKind.INTEGER:
            whole = int(value)  # JSON schema takes 3.0 for an integer
            if whole not in _INT64:
                raise OverflowError(f"{whole} is outside the range of int64")
            return whole
        return bool(value)


def shape_of(schema: object, root: dict[str, Any], followed: frozenset[str] = frozenset()) -> Shape:
    """Shape of one property. ``followed`` holds the references on the way here: a schema that holds itself ends as JSON text."""
    if not isinstance(schema, dict):
        return Shape(ColumnKind.JSON)
    if "$ref" in schema:
        reference = schema["$ref"]
        return Shape(ColumnKind.JSON) if reference in followed else shape_of(follow(root, reference), root, followed | {reference})
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema and "type" not in schema:
            return _union(schema[union], root, followed)
    if "enum" in schema or "const" in schema:
        return _of_values(schema.get("enum", [schema.get("const")]))
    return _typed(schema, root, followed)


def _union(members: list[Any], root: dict[str, Any], followed: frozenset[str]) -> Shape:
    shapes = {shape_of(member, root, followed) for member in members if member != {"type": "null"}}
    if shapes == {Shape(ColumnKind.INTEGER), Shape(ColumnKind.NUMBER)}:
        return Shape(ColumnKind.NUMBER)
    return shapes.pop() if len(shapes) == 1 else Shape(ColumnKind.JSON)


def _of_values(values: list[Any]) -> Shape:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return Shape(ColumnKind.NUMBER)
    by_type = {str: ColumnKind.STRING, bool: ColumnKind.BOOLEAN, int: ColumnKind.INTEGER, float: ColumnKind.NUMBER}
    return Shape(by_type.get(kinds.pop(), ColumnKind.JSON) if len(kinds) == 1 else ColumnKind.JSON)


def _typed(schema: dict[str, Any], root: dict[str, Any], followed: frozenset[str]) -> Shape:
    named = schema.get("type")
    types = set(named if isinstance(named, list) else [named]) - {"null"}
    if types == {"integer", "number"}:
        return Shape(ColumnKind.NUMBER)
    kind = types.pop() if len(types) == 1 else None
    if kind == "array" and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        return Shape(ColumnKind.LIST, item=shape_of(schema["items"], root, followed))
    if kind == "object" and schema.get("properties"):
        fields = tuple((name, shape_of(value, root, followed)) for name, value in schema["properties"].items())
        return Shape(ColumnKind.STRUCT, fields=fields)
    return Shape(ColumnKind(kind)) if kind in ("string", "integer", "number", "boolean") else Shape(ColumnKind.JSON)
