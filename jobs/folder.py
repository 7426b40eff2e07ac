"""Where things lie in a state folder, and whether this version may use it."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from connectors.errors import StorageError

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
    def lock(self) -> Path:
        """Held by a server from its start to its end."""
        return self.root / "server.lock"

    def is_served(self) -> bool:
        """Whether a server holds the lock: it starts, answers or stops."""
        try:
            with self.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def inputs(self) -> Path:
        """What came through standard input, a folder for each."""
        return self.root / "inputs"

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
        """Where the rows of a source that was copied are kept while the job may need them."""
        return self.jobs / job_id / "input"

    def spools(self, job_id: str) -> Path:
        return self.jobs / job_id / "spool"

    def spool(self, job_id: str, slice_id: int, generation: int) -> Path:
        return self.spools(job_id) / f"slice-{slice_id:06d}.g{generation}.jsonl"

    def forget_unmade(self, known: Collection[str]) -> None:
        """Remove what a server that died in the middle of a submit left: copied rows of jobs that are not among ``known``.

        Folders that hold results stay, whoever knows of them. Call it while nobody submits.
        """
        for path in self.jobs.glob("*"):
            is_staging = path.name.startswith(".staging-")
            is_unmade = path.name not in known and [entry.name for entry in path.glob("*")] == ["input"]
            if is_staging or is_unmade:
                shutil.rmtree(path, ignore_errors=True)

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
