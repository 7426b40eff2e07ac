"""``--into``: copy results to a target while their job runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from connectors.parquet.parts import PartsSink
from connectors.targets.target import Target, TargetName
from harvester.cli.client import ServerInfo
from harvester.cli.invocation import Invocation
from harvester.errors import UsageError
from jobs.spec import JobView
from jobs.sql.guard import check_target
from jobs.states import ENDED
from jobs.storage.parts import results_of
from jobs.storage.place import known_folder

INTO_HELP = "File or table that grows while the job runs: .parquet, .jsonl, .csv, or db.duckdb:TABLE."
IntoOption = Annotated[str | None, typer.Option("--into", metavar="TARGET", help=INTO_HELP, show_default=False)]


def checked_target(text: str, here: Invocation, info: ServerInfo | None = None) -> TargetName:
    """Raises `UsageError` or `QueryError` for a name that cannot be a target. Called before a job is made."""
    name = TargetName.of(text)
    check_target(name.path, here.local_state(info))
    name.check()
    return name


def written_line(copied: Mapping[str, object]) -> str:
    return f"wrote {copied['rows_written']:,} rows to {copied['into']}"


def parts_of(state_dir: Path, job: str) -> PartsSink:
    """Raises `UsageError` where the state folder is not on this machine."""
    if not state_dir.is_dir():
        raise UsageError(
            f"results are read from the state folder {state_dir}, which is not on this machine; run this where the server runs"
        )
    return results_of(known_folder(state_dir), job)


@dataclass(slots=True)
class Copying:
    """Copies a job's results into a target."""

    name: TargetName
    target: Target
    parts: PartsSink
    rows: int = 0

    def follow(self, views: Iterator[JobView]) -> Iterator[JobView]:
        """Yield each view, after copying the rows finished by then."""
        for view in views:
            self.bring(is_final=view.state in ENDED)
            yield view

    def bring(self, *, is_final: bool) -> None:
        self.rows = self.target.update(self.parts.parts(), is_final=is_final)

    def to_json(self) -> dict[str, object]:
        return {"into": str(self.name), "rows_written": self.rows}


@contextmanager
def copying(name: TargetName, state_dir: Path, job: str) -> Iterator[Copying]:
    """Raises `StorageError` for a target that holds something else. After a kill, the same command continues."""
    parts = parts_of(state_dir, job)
    try:
        with name.open(job) as target:
            yield Copying(name, target, parts)
    except KeyboardInterrupt:
        print(f"Go on with: harvester results {job} --into {name}", file=sys.stderr, flush=True)
        raise
