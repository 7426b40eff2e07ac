"""Values that an existing table would change silently: DuckDB rounds where a column is narrower than the rows put into it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")


@dataclass(frozen=True, slots=True)
class Change:
    """A value of a column, as it is and as the table would keep it; both as text."""

    column: str
    kind: str
    kept_kind: str
    value: str
    kept: str

    def __str__(self) -> str:
        return f"its column {self.column!r} is {self.kept_kind}, in the results it is {self.kind}: {self.value} would become {self.kept}"


def first_change(connection: duckdb.DuckDBPyConnection, rows: str, table: str) -> Change | None:
    """The first value of ``rows`` (a SELECT) that `INSERT ... BY NAME` into ``table`` would change, if any.

    What cannot be cast at all counts as unchanged: the INSERT itself refuses it. One scan for each column whose type differs.
    """
    kept = {name.lower(): kind for name, kind in _kinds(connection, f"SELECT * FROM {table}")}
    for name, kind in _kinds(connection, rows):
        kept_kind = kept.get(name.lower(), kind)
        compared = _compared(kind, kept_kind)
        if compared is None:
            continue
        column = '"' + name.replace('"', '""') + '"'
        found = connection.execute(
            f"SELECT {column}::VARCHAR, try_cast({column} AS {kept_kind})::VARCHAR FROM ({rows}) "
            f"WHERE try_cast(try_cast({column} AS {kept_kind}) AS {compared}) <> try_cast({column} AS {compared}) LIMIT 1"
        ).fetchone()
        if found is not None:
            return Change(name, kind, kept_kind, *(str(value)[:80] for value in found))
    return None


def _compared(kind: str, kept_kind: str) -> str | None:
    """The type to compare both values in; None where nothing is lost. Text is compared as what it says: ``12.50`` is 12.5."""
    if kind == kept_kind:
        return None
    if kind != "VARCHAR":
        return kind
    if kept_kind == "DATE":
        return "TIMESTAMP"
    return "DOUBLE" if _NUMBER.fullmatch(kept_kind) else None


def _kinds(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    return [(str(name), str(kind)) for name, kind, *_ in connection.execute(f"DESCRIBE {query}").fetchall()]
