"""Build a job request from the options of `harvester submit`, checked as far as possible before a server starts."""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from connectors.open import is_attached
from connectors.targets.target import is_table
from harvester.api.client import implied_task
from harvester.errors import SourceError, TaskError, UsageError
from jobs.spec import JobRequest, SourceSpec
from jobs.tasks.load import load_task, resolve_task

MAX_TASK_BYTES = 1 << 20

_GLOB = re.compile(r"[*?\[]")


def build_request(
    source: str,
    *,
    table: str | None,
    query: str | None,
    task: str | None,
    options: dict[str, Any],
    keep: str | None,
    chosen: Mapping[str, Any] | None = None,
    **fields: Any,
) -> JobRequest:
    """Raises `SourceError` for a local source that is not there, `TaskError` for a file that is no task, `UsageError` for the rest."""
    if table is not None and query is not None:
        raise UsageError("--table and --query exclude each other; give one of them")
    name, inline = implied_task(options) if task is None else _task(task)
    resolve_task(name, inline=inline, options=options, images=fields.get("images", ()))
    try:
        return JobRequest(
            source=SourceSpec(uri=find_source(source), table=table, query=query, **(chosen or {})),
            task=name,
            task_inline=inline,
            options=options,
            keep=None if keep is None else _names(keep),
            **fields,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']} (given {str(first['input'])[:80]!r})") from error


def task_options(flags: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Options of the task by name: those with a flag of their own (None: not given), then each ``NAME=VALUE``. Raises `UsageError`."""
    options = {name: value for name, value in flags.items() if value is not None}
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"--option {word} is not NAME=VALUE; write for example --option tone=calm")
        if name in options:
            raise UsageError(f"option {name} is given twice: by --{name} and by --option; leave one out")
        if name in named:
            raise UsageError(f"option {name} is given twice by --option: {named[name]!r} and {value!r}; leave one out")
        named[name] = value
    return options | named


def find_source(source: str) -> str:
    """Absolute path or glob of a local source; an address, with ``://`` or as DuckDB's ATTACH has it, as it is.

    Raises `SourceError` where nothing is there.
    """
    if "://" in source:
        return source
    if is_attached(source):
        kind, _, rest = source.partition(":")
        return f"{kind}:{_absolute(rest)}" if kind.lower() in ("duckdb", "sqlite") else source
    path = _absolute(source)
    if path.exists() or (is_table(source) and Path(str(path).rpartition(":")[0]).exists()):
        return str(path)
    if _GLOB.search(source):
        # An absolute pattern, which Path.glob does not take.
        if next(glob.iglob(str(path), recursive=True), None) is not None:  # noqa: PTH207
            return str(path)
        raise SourceError(f"no file matches {source}; the pattern is read from {Path.cwd()}")
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1) if path.parent.is_dir() else []
    hint = f"did you mean {Path(source).with_name(near[0])}?" if near else "give a file, a glob, a folder or a database"
    raise SourceError(f"{source} does not exist; {hint}")


def read_schema(path: Path | None) -> dict[str, Any] | None:
    """Content of ``--schema FILE.json``. Raises `TaskError`."""
    if path is None:
        return None
    try:
        schema = json.loads(_read_small(path, "schema"))
    except ValueError as error:
        raise TaskError(f"schema {path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise TaskError(f"schema {path} holds a {type(schema).__name__}; it must be a JSON object with type and properties")
    return schema


def read_thinking(given: str | None) -> str | int | None:
    """``--thinking``, checked. Raises `UsageError`."""
    if given is None or given in ("off", "on"):
        return given
    if given.isdecimal() and int(given):
        return int(given)
    raise UsageError(f"--thinking {given} is neither off, on nor a number of tokens; write for example --thinking 1024")


def read_template_kwargs(given: str | None) -> dict[str, Any]:
    """``--chat-template-kwargs``. Raises `UsageError`."""
    try:
        kwargs = json.loads(given or "{}")
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs is not JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise UsageError('--chat-template-kwargs must be a JSON object, such as {"reasoning_effort": "low"}')
    return kwargs


def _absolute(path: str) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - the home of an unknown user stays as it is written


def _task(task: str) -> tuple[str, dict[str, Any] | None]:
    """Name of the task, and its content if ``task`` is a file: the server gets the content, never the path."""
    if not (task.endswith((".yaml", ".yml")) or "/" in task):
        return load_task(task).name, None
    path = Path(os.path.expanduser(task))  # noqa: PTH111 - as above
    _read_small(path, "task")
    file = load_task(path)
    return file.name, file.inline()


def _read_small(path: Path, what: str) -> str:
    try:
        if path.stat().st_size > MAX_TASK_BYTES:
            raise TaskError(f"{what} file {path} has {path.stat().st_size:,} bytes; at most {MAX_TASK_BYTES:,} are read")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"cannot read {what} file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{what} file {path} is not UTF-8 text") from error


def _names(listed: str) -> tuple[str, ...]:
    """``a,b`` as names; ``none`` as no name at all."""
    return () if listed.strip() == "none" else tuple(name.strip() for name in listed.split(",") if name.strip())
