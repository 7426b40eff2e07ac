"""Where things lie in a state folder, and whether this version may use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harvester.errors import StorageError

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class StateFolder:
    root: Path

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.duckdb"

    @property
    def server(self) -> Path:
        """What a running server says of itself; removed when it stops."""
        return self.root / "server.json"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def files(self) -> Path:
        """Uploaded files and the files made of batches."""
        return self.root / "files"

    @property
    def batches(self) -> Path:
        """One JSON file a batch; its rows are a job of the same id."""
        return self.root / "batches"

    def results(self, job_id: str) -> Path:
        return self.jobs / job_id / "results"

    def snapshot(self, job_id: str) -> Path:
        """Where the rows of a DuckDB query are kept while the job may need them."""
        return self.jobs / job_id / "input"

    def spools(self, job_id: str) -> Path:
        return self.jobs / job_id / "spool"

    def spool(self, job_id: str, slice_id: int, generation: int) -> Path:
        return self.spools(job_id) / f"slice-{slice_id:06d}.g{generation}.jsonl"

    def prepare(self) -> None:
        """Make the folder, or check that it is of this version. Raises `StorageError`."""
        marker = self.root / "VERSION"
        try:
            self.jobs.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            if not marker.exists():
                marker.write_text(json.dumps({"version": STATE_VERSION}) + "\n", encoding="utf-8")
            text = marker.read_text(encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot use state folder {self.root}: {error.strerror}; give another one with --state") from error
        found = _version(text)
        if found != STATE_VERSION:
            raise StorageError(
                f"state folder {self.root} is of version {found}, this harvester writes version {STATE_VERSION}; "
                "give a new folder with --state, or run the version that made it"
            )


def _version(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return repr(text[:40])
    return value.get("version") if isinstance(value, dict) else value


def part_name(slice_id: int) -> str:
    """One part a slice, so that a slice computed twice still is in the results once."""
    return f"part-{slice_id:06d}"
