"""Maps column types, down through nested lists and structs."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

Leaf = Callable[[pa.DataType], pa.DataType]


def with_leaves(kind: pa.DataType, leaf: Leaf) -> pa.DataType:
    """``kind`` with ``leaf`` applied to every type in it that is neither list nor struct. Names and nullability of fields stay."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_leaves(field.type, leaf)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_inner(kind, leaf), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_inner(kind, leaf))
    return pa.large_list(_inner(kind, leaf)) if pa.types.is_large_list(kind) else leaf(kind)


def _inner(kind: pa.DataType, leaf: Leaf) -> pa.Field:
    return kind.value_field.with_type(with_leaves(kind.value_type, leaf))


def for_duckdb(kind: pa.DataType) -> pa.DataType:
    """The type to cast ``kind`` to so that DuckDB reads it: half floats become floats, decimals of more than 38 digits text."""
    return with_leaves(kind, _known)


def _known(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.string() if pa.types.is_decimal256(kind) else kind
