"""Rows of answers as objects of the user's Pydantic model, of which only its JSON schema is known here."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa


class Typed:
    """Makes objects of ``model``. A null of a table says that the answer had null there or nothing, which its columns do not tell apart.

    Where the model takes null, it gets null. Elsewhere, in nested objects too, the property is left out and gets the model's default.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._root: dict[str, Any] = model.model_json_schema()
        self._whole = self._one(self._root)

    def of(self, row: dict[str, Any], schema: pa.Schema) -> Any:
        """A row's answer: from its columns if the job had this schema, else from the JSON in ``output``. Raises Pydantic's errors."""
        names = self._whole.get("properties", {})
        if "output" in row and not (names and names.keys() <= row.keys()):
            return self._model.model_validate(json.loads(row["output"]))
        given = {name: _plain(row[name], schema.field(name)) for name in names if name in row}
        return self._model.model_validate(self._given(given, self._whole))

    def _given(self, value: Any, schema: Any) -> Any:
        """``value`` without the nulls that ``schema`` neither takes nor requires."""
        schema = self._one(schema)
        if isinstance(value, list):
            return [self._given(entry, schema.get("items", {})) for entry in value]
        if not isinstance(value, dict):
            return value
        parts, required = schema.get("properties", {}), schema.get("required", ())
        kept = (name for name in value if value[name] is not None or name in required or self._takes_null(parts.get(name, {})))
        return {name: self._given(value[name], parts.get(name, {})) for name in kept}

    def _one(self, schema: Any) -> dict[str, Any]:
        """What a reference, or a union of one schema and null, stands for. Empty where several schemas may hold."""
        one = self._followed(schema)
        for union in ("anyOf", "oneOf", "allOf"):
            if union in one:
                members = [member for member in one[union] if member != {"type": "null"}]
                return self._one(members[0]) if len(members) == 1 else {}
        return one

    def _takes_null(self, schema: Any) -> bool:
        schema = self._followed(schema)
        for union, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
            if union in schema:
                return enough(self._takes_null(member) for member in schema[union])
        if "enum" in schema or "const" in schema:
            return None in schema.get("enum", [schema.get("const")])
        kinds = schema.get("type", "null")
        return "null" in (kinds if isinstance(kinds, list) else [kinds])

    def _followed(self, schema: Any) -> dict[str, Any]:
        while isinstance(schema, dict) and "$ref" in schema:
            found: Any = self._root
            for name in schema["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            schema = found
        return schema if isinstance(schema, dict) else {}


def _plain(value: Any, field: pa.Field) -> Any:
    """A cell as in the answer's JSON. A value that fits no Arrow type is stored as JSON text, in a field marked by its metadata."""
    if value is None:
        return None
    if (field.metadata or {}).get(b"harvester") == b"json":
        return json.loads(value)
    if pa.types.is_list(field.type):
        return [_plain(entry, field.type.value_field) for entry in value]
    if pa.types.is_struct(field.type):
        return {part.name: _plain(value[part.name], part) for part in field.type}
    return value
