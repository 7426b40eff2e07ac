"""Types that DuckDB and Arrow do not have in common, as both have them."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from connectors.kinds import with_leaves

_INEXACT = frozenset({"UHUGEINT", "TIME WITH TIME ZONE", "BIT", "BIGNUM", "VARINT", "VARIANT"})  # which DuckDB gives Arrow otherwise


def exactly(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The relation, with columns of types that Arrow would have other values of as text."""
    kinds = [str(kind) for kind in relation.types]
    if _INEXACT.isdisjoint(kinds):
        return relation
    names = ['"' + name.replace('"', '""') + '"' for name in relation.columns]
    columns = [f"cast({name} as varchar) as {name}" if kind in _INEXACT else name for name, kind in zip(names, kinds, strict=True)]
    return relation.project(", ".join(columns))


def for_duckdb(kind: pa.DataType) -> pa.DataType:
    """A type that DuckDB reads, which Arrow casts ``kind`` to: half floats become floats, decimals of more than 38 digits text."""
    return with_leaves(kind, _known)


def _known(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.string() if pa.types.is_decimal256(kind) else kind
