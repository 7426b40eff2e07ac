"""Size limits of a query, checked on its tokens alone: DuckDB's parser and planner cannot be interrupted, and may take minutes."""

from __future__ import annotations

from typing import NamedTuple

import duckdb

MAX_DEPTH = 500  # brackets within brackets: 3,000 that are never closed take the parser 18 s and 1 GB
MAX_SET_OPERATIONS = 1000  # planned in 0.3 s; 5,000 take over 30 s
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_SET_OPERATIONS = frozenset({"union", "intersect", "except"})


class Token(NamedTuple):
    text: str
    kind: str  # "keyword", "identifier", "operator", "string_const", "numeric_const"


def tokens(query: str) -> list[Token]:
    """The query's tokens as DuckDB sees them, without comments."""
    raw = query.encode()
    marks = [(offset, kind.name) for offset, kind in duckdb.tokenize(query)]  # offsets count bytes
    ends = [offset for offset, _ in marks[1:]] + [len(raw)]
    found = [
        (raw[start:end].decode().strip(), kind) for (start, kind), end in zip(marks, ends, strict=False)
    ]  # an empty query has no marks
    return [Token(text, kind) for text, kind in found if kind != "comment"]


def fault(words: list[Token]) -> str | None:
    """Why a query is too large, and what to do; None if DuckDB parses and plans it quickly."""
    depth = deepest = 0
    for word in words:
        depth += (word.text in _OPENING) - (word.text in _CLOSING)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return f"the query nests {deepest:,} brackets; the limit is {MAX_DEPTH}: split it into WITH parts"
    joined = sum(word.text.lower() in _SET_OPERATIONS for word in words)
    if joined > MAX_SET_OPERATIONS:
        return f"the query has {joined:,} set operations; the limit is {MAX_SET_OPERATIONS:,}: write the values as one VALUES"
    return None
