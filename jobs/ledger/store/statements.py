"""The statements of ``ledger.sql`` by name, in the dialect of each store, and the columns of the tables that users' SQL sees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import pyarrow as pa

TABLES = ("jobs", "leases", "harvest", "lengths", "usage", "harvested")
SCHEMA_VERSION = 1
SQLITE = {"VARCHAR": "TEXT", "BIGINT": "INTEGER", "DOUBLE": "REAL"}
POSTGRES = {"DOUBLE": "DOUBLE PRECISION"}
_ARROW = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64()}
_COLUMN = re.compile(r"^    (\w+) (VARCHAR|BIGINT|INTEGER|DOUBLE)\b", re.MULTILINE)


@cache
def statements() -> Mapping[str, str]:
    """Every ``-- name: NAME`` block of ``ledger.sql``, without its comments. ``schema`` can be run by DuckDB too."""
    text = files("jobs.ledger.store").joinpath("ledger.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"^--.*\n?", "", body, flags=re.MULTILINE).strip() for body in parts[1::2])
    return dict(zip(parts[::2], bodies, strict=True))


def definitions(types: Mapping[str, str], table_options: str = "") -> list[str]:
    """The statements that create missing tables and indexes, with ``types`` in place of DuckDB's type names."""
    text = "\n".join(statements()[name] for name in ("schema", "own_schema"))
    for name, other in types.items():
        text = re.sub(rf"\b{name}\b", other, text)
    text = text.replace("\n);", f"\n){table_options};")
    return [one.strip() for one in text.split(";") if one.strip()]


@cache
def columns(table: str, without: tuple[str, ...] = ()) -> pa.Schema:
    """Names and types of a table's columns, in order, but for those ``without``."""
    body = statements()["schema"].split(f"EXISTS {table} (")[1].split("\n)")[0]
    return pa.schema([(name, _ARROW[kind]) for name, kind in _COLUMN.findall(body) if name not in without])


def table_of(name: str, rows: list[tuple[object, ...]], without: tuple[str, ...] = ()) -> pa.Table:
    """``rows`` of a table with `columns`, as Arrow."""
    schema = columns(name, without)
    if not rows:
        return schema.empty_table()
    return pa.table([pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema)
