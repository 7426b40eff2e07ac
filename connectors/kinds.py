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
