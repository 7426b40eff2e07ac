"""Casts from types of DuckDB that Arrow lacks to types that both have."""

from __future__ import annotations

from typing import Any

import duckdb
from duckdb.sqltypes import VARCHAR, DuckDBPyType

_INEXACT = frozenset({"UHUGEINT", "TIME WITH TIME ZONE", "BIT", "BIGNUM", "VARINT", "VARIANT"})  # exported to Arrow as other values
_NESTED = frozenset({"list", "array", "map", "struct", "union"})


def exactly(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The relation, with columns whose values would change in Arrow cast to text, also inside lists, structs and maps."""
    kinds = [(str(kind), str(_exact(kind))) for kind in relation.types]
    if all(kind == exact for kind, exact in kinds):
        return relation
    names = ['"' + name.replace('"', '""') + '"' for name in relation.columns]
    # By position: a query may name two columns alike.
    columns = [f"#{i}" if kind == exact else f"cast(#{i} as {exact})" for i, (kind, exact) in enumerate(kinds, 1)]
    return relation.project(", ".join(f"{column} as {name}" for column, name in zip(columns, names, strict=True)))


def _exact(kind: DuckDBPyType) -> DuckDBPyType:
    if str(kind) in _INEXACT:
        return VARCHAR
    if kind.id not in _NESTED:
        return kind
    parts: dict[str, Any] = {name: _exact(part) if isinstance(part, DuckDBPyType) else part for name, part in kind.children}
    match kind.id:
        case "list":
            return duckdb.list_type(parts["child"])
        case "array":
            return duckdb.array_type(parts["child"], parts["size"])
        case "map":
            return duckdb.map_type(parts["key"], parts["value"])
        case "struct":
            return duckdb.struct_type(parts)
    return kind if all(parts[name] == part for name, part in kind.children) else VARCHAR
