"""What a user's SQL may do: read anything, write files outside the state folder, change nothing within it.

It keeps a person from harming a job by accident. It is no sandbox: who may run SQL here may also run a shell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import duckdb

from connectors.databases.shape import Token, fault, tokens
from jobs.errors import QueryError

_KIND = duckdb.StatementType
_READS = {_KIND.SELECT, _KIND.EXPLAIN}
_EXPLAINED = {"select", "with", "from", "values", "table", "describe", "show", "summarize", "pivot", "unpivot", "("}
_MAY = "select, with, from, values, describe, show, summarize, pivot, explain, and copy (...) to 'file'"


def check_shape(query: str) -> list[Token]:
    """The query's tokens. Raises `QueryError` for one that DuckDB would parse or plan for very long."""
    words = tokens(query)
    too_much = fault(words)
    if too_much is not None:
        raise QueryError(too_much)
    return words


def check_query(connection: duckdb.DuckDBPyConnection, query: str, state_dir: Path) -> None:
    """Raise `QueryError` unless ``query`` is one statement that leaves ``state_dir`` as it is."""
    words = check_shape(query)
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise QueryError(f"give one SQL statement, given {len(statements)}; run the others as separate commands")
    kind = statements[0].type
    first = words[0].text.lower()
    if kind == _KIND.COPY and first == "copy":
        _check_copy(words, state_dir)
    elif kind not in _READS and not (kind == _KIND.MULTI and first in ("pivot", "with", "from", "select", "(")):
        raise QueryError(f"{first.upper()} is not allowed here: SQL only reads harvester's state; use {_MAY}")
    if kind == _KIND.EXPLAIN and next(_after_explain(words)).text.lower() not in _EXPLAINED:
        raise QueryError("EXPLAIN is allowed for queries only, because EXPLAIN ANALYZE runs the statement")
    _refuse_inner_copy(words[1:])


def check_reads(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise `QueryError` unless ``query`` is one statement that only reads, whatever it reads."""
    words = check_shape(query)
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(str(error).splitlines()[0]) from error
    if len(statements) != 1:
        raise QueryError(f"give one SQL statement, given {len(statements)}")
    first, kind = words[0].text.lower(), statements[0].type
    if kind not in _READS and not (kind == _KIND.MULTI and first in ("pivot", "with", "from", "select", "(")):
        raise QueryError(f"{first.upper()} is not allowed here: SQL only reads the tables of the ledger and results('JOB')")
    if kind == _KIND.EXPLAIN and next(_after_explain(words)).text.lower() not in _EXPLAINED:
        raise QueryError("EXPLAIN is allowed for queries only, because EXPLAIN ANALYZE runs the statement")
    _refuse_inner_copy(words)


def check_target(path: Path, state_dir: Path) -> None:
    """Raise `QueryError` where writing to ``path`` could touch ``state_dir``. Links and ``..`` are followed first."""
    target, state = (Path(os.path.expanduser(one)).resolve() for one in (path, state_dir))  # noqa: PTH111 - the home of an unknown user stays as it is written
    if target == state or state in target.parents or target in state.parents:
        raise QueryError(f"cannot write to {path}: it lies in harvester's state folder {state}, which SQL only reads; name another place")


def _after_explain(words: list[Token]) -> Iterator[Token]:
    """What follows ``EXPLAIN``, ``EXPLAIN ANALYZE`` or ``EXPLAIN (options)``."""
    rest = iter(words[1:])
    for word in rest:
        if word.text.lower() in ("analyze", "verbose"):
            continue
        if word.text == "(" and words[2].text.lower() in ("analyze", "format", "verbose"):
            while next(rest).text != ")":
                pass
            continue
        yield word
        yield from rest


def _refuse_inner_copy(words: list[Token]) -> None:
    """Raise `QueryError` for a COPY within a WITH, which DuckDB would run: ``with t as (copy ... to ...) select ...``."""
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        opens = before.text == "(" and (after.text == "(" or after.kind != "operator")
        if word.text.lower() == "copy" and opens:
            raise QueryError('COPY is allowed as the whole statement only; a column of that name is written "copy"')


def _check_copy(words: list[Token], state_dir: Path) -> None:
    depth = 0
    for word, after in pairwise(words):
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0 and word.text.lower() == "from":
            raise QueryError("COPY ... FROM is not allowed here: SQL only reads; use select * from 'file'")
        if depth == 0 and word.text.lower() == "to":
            check_target(_local_path(after), state_dir)
            break
    if any(word.text.lower() == "filename_pattern" for word in words):
        raise QueryError("COPY's option filename_pattern is not allowed here, because it can name files elsewhere")


def _local_path(word: Token) -> Path:
    if word.kind != "string_const" or not word.text.startswith("'"):
        raise QueryError(f"COPY ... TO {word.text} is not allowed here: write the file's name in single quotes")
    name = word.text[1:-1].replace("''", "'")
    for prefix in ("file://localhost", "file://", "file:"):
        if name.startswith(prefix):
            return Path("/" + name.removeprefix(prefix).lstrip("/"))
    return Path("/dev/null") if "://" in name else Path(name)  # a bucket is never the state folder
