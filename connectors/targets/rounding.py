"""Values that an existing table would change silently: DuckDB rounds where a column is narrower than the rows put into it.

A column of FLOAT, or of DOUBLE for text, may round fractions to the digits that it has: that is what its owner chose it for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb

_UNTYPED = '"NULL"'  # DuckDB's type of a column, or an element, that never had a value
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")
# More than a fraction's last digits: a number that became infinite or 0, or a whole number that became another.
_NOT_A_ROUNDING = r"""
    isinf(kept) AND regexp_matches(value::VARCHAR, '[0-9]')
    OR kept = 0 AND regexp_matches(value::VARCHAR, '^[^eE]*[1-9]')
    OR regexp_full_match(value::VARCHAR, '\s*[+-]?[0-9]+(\.0*)?\s*') AND try_cast(kept AS HUGEINT) <> try_cast(value::VARCHAR AS HUGEINT)
"""


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
        changed = _changed(kind, kept_kind)
        if changed is None:
            continue
        column = '"' + name.replace('"', '""') + '"'
        shown = "kept::DOUBLE" if kept_kind == "FLOAT" else "kept"  # as FLOAT, 16777216 has the digits of 16777217
        found = connection.execute(
            f"SELECT value::VARCHAR, {shown}::VARCHAR "
            f"FROM (SELECT {column} AS value, try_cast({column} AS {kept_kind}) AS kept FROM ({rows})) WHERE {changed} LIMIT 1"
        ).fetchone()
        if found is not None:
            return Change(name, kind, kept_kind, *(str(value)[:80] for value in found))
    return None


def give_types(connection: duckdb.DuckDBPyConnection, rows: str, table: str) -> None:
    """Give columns of ``table`` that never had a value, and so no type, the type that they have in ``rows`` (a SELECT).

    A field of a struct and the elements of a list are given one too. What has a type keeps it, and so every value that is there.
    """
    untyped = {name.lower(): kind for name, kind in _kinds(connection, f"SELECT * FROM {table}") if _UNTYPED in kind}
    for name, kind in _kinds(connection, rows) if untyped else ():
        pattern = re.escape(untyped.get(name.lower(), kind)).replace(_UNTYPED, ".+")
        if name.lower() in untyped and _UNTYPED not in kind and re.fullmatch(pattern, kind):
            column = '"' + name.replace('"', '""') + '"'
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}")


def _changed(kind: str, kept_kind: str) -> str | None:
    """SQL that is true where ``kept``, a ``value`` as the table keeps it, is another value; None where nothing is lost.

    Text is compared as what it says: ``12.50`` is 12.5. Lists and structs that differ only in FLOAT and DOUBLE count as the same.
    """
    if kind == kept_kind:
        return None
    if kept_kind == "FLOAT" or (kind, kept_kind) == ("VARCHAR", "DOUBLE"):
        return _NOT_A_ROUNDING
    if kind.replace("DOUBLE", "FLOAT") == kept_kind.replace("DOUBLE", "FLOAT"):
        return None
    compared = kind
    if kind == "VARCHAR":
        compared = "TIMESTAMP" if kept_kind == "DATE" else "DOUBLE" if _NUMBER.fullmatch(kept_kind) else kind
    return f"try_cast(kept AS {compared}) <> try_cast(value AS {compared})" if compared != "VARCHAR" else None


def _kinds(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    return [(str(name), str(kind)) for name, kind, *_ in connection.execute(f"DESCRIBE {query}").fetchall()]
