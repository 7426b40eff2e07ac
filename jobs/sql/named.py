"""Tables of DuckDB files as ``--into`` names them, in a query: ``select * from 'shop.duckdb:docs'``."""

from __future__ import annotations

from pathlib import Path

import duckdb

from connectors.databases.database import Database
from connectors.databases.shape import tokens
from connectors.errors import HarvesterError
from connectors.targets.target import TargetName, is_table

_NOTES = "harvester_parts"  # what `connectors.targets.table` keeps beside the tables
_SUFFIXES = (".duckdb", ".ddb")


def with_tables(query: str) -> str:
    """The query with each such name after FROM, JOIN or a comma as a ``read_duckdb`` call. A file with one table needs no table name."""
    raw = query.encode()
    marks = [(offset, kind.name) for offset, kind in duckdb.tokenize(query)]
    words = tokens(query)
    if len(words) != len(marks):  # comments
        return query
    for index in range(len(words) - 1, 0, -1):
        word, before = words[index], words[index - 1].text.lower()
        if word.kind != "string_const" or before not in ("from", "join", ","):
            continue
        call = _call(word.text[1:-1].replace("''", "'"))
        if call is not None:
            start = marks[index][0]
            raw = raw[:start] + call.encode() + raw[start + len(word.text.encode()) :]
    return raw.decode()


def _call(name: str) -> str | None:
    if is_table(name) and "://" not in name and not Path(name).exists():
        target = TargetName.of(name)
        return _read(str(target.path), target.table or "")
    if name.lower().endswith(_SUFFIXES) and Path(name).is_file():
        try:
            with Database.open(Path(name)) as database:
                found = [table for table in database.tables() if table != _NOTES]
        except HarvesterError:
            return None  # DuckDB says what is wrong
        return _read(name, found[0]) if len(found) == 1 and "." not in found[0] else None
    return None


def _read(path: str, table: str) -> str:
    quoted = [text.replace("'", "''") for text in (path, table)]
    return f"read_duckdb('{quoted[0]}', table_name = '{quoted[1]}')"
