"""Copies of results outside the state folder, updated part by part: their contract, and the target that a name means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from connectors.errors import StorageError, UsageError
from connectors.parquet.parts import Part
from connectors.paths.names import SUFFIXES, FileKind
from connectors.targets.appended import AppendedFile, LineForm, is_appended
from connectors.targets.rewritten import RewrittenFile, is_rewritten
from connectors.targets.table import TableCopy

_TABLE = re.compile(r"(?P<file>.+\.(duckdb|ddb|db)):(?P<table>[^:/]+)", re.IGNORECASE)
_LINES = {".jsonl": LineForm.JSONL, ".ndjson": LineForm.JSONL, ".csv": LineForm.CSV}
KNOWN = "FILE.parquet, FILE.jsonl, FILE.csv or FILE.duckdb:TABLE"


def is_table(text: str) -> bool:
    """Whether ``text`` names a table of a DuckDB file: ``shop.duckdb:docs``."""
    return _TABLE.fullmatch(text) is not None


class Target(Protocol):
    """Holds the rows of one job's parts, each part once and whole, even if a writer is killed at any time.

    Reopened, it continues where it was. Errors are raised as `connectors.errors.StorageError`.
    """

    def update(self, parts: Sequence[Part], *, is_final: bool) -> int:
        """Add new parts, and replace those whose edition changed; ``parts`` are all that the job has now. Returns the rows held.

        Durable on return. Before ``is_final`` a target may lag behind, if keeping up would cost too much.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


@dataclass(frozen=True, slots=True)
class TargetName:
    """What a user named: a file, and a table where it is a DuckDB file."""

    path: Path
    table: str | None

    @classmethod
    def of(cls, text: str) -> TargetName:
        """Raises `UsageError` for a name that says no format."""
        if "://" in text:
            raise UsageError(f"results are written to this machine's disks, not to {text}; give {KNOWN} and copy it there")
        match = _TABLE.fullmatch(text)
        try:
            path = Path(match["file"] if match else text).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(f"{text} begins with the home folder of a user who is unknown here; give a path without ~") from error
        suffix = path.suffix.lower()
        if match is None and suffix in (".duckdb", ".ddb", ".db"):
            raise UsageError(f"{text} is a DuckDB file: name the table too, as {text}:results")
        if match is None and suffix not in _LINES and suffix not in SUFFIXES[FileKind.PARQUET]:
            raise UsageError(f"unknown kind of target {text!r}; give {KNOWN}")
        return cls(path, match["table"] if match else None)

    def check(self) -> None:
        """Raise `StorageError` for an existing file that was not written as a target. Called before the job exists."""
        if self.table is None and self.path.exists():
            form = _LINES.get(self.path.suffix.lower())
            if not (is_rewritten(self.path) if form is None else is_appended(self.path)):
                raise StorageError(f"{self.path} is there already and was not written by --into; move it away or name another file")

    def open(self, job: str) -> Target:
        """Raises `StorageError` for a file that holds something else than this job's results, or that another process writes."""
        if self.table is not None:
            return TableCopy(self.path, self.table, job)
        form = _LINES.get(self.path.suffix.lower())
        return RewrittenFile(self.path, job) if form is None else AppendedFile(self.path, form, job)

    def __str__(self) -> str:
        return str(self.path) if self.table is None else f"{self.path}:{self.table}"
