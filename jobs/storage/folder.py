"""Where things lie in a state folder, and whether this version may use it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.durable import publish
from connectors.errors import StorageError
from jobs.errors import LowDiskError, StateError

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

STATE_VERSION = 2  # 1: the ledger was a DuckDB file
SECRETS = "secrets.json"  # of a job's source, in the job's folder
JOB_FILE = "job.json"  # in a job's folder: see `jobs.ledger.jobfile`


@dataclass(frozen=True, slots=True)
class StateFolder:
    """``mirror``: the storage of the files that other machines need, if that is not the folder itself; set by `jobs.storage.place`."""

    root: Path
    mirror: Mirror | None = field(default=None, compare=False)

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def old_ledger(self) -> Path:
        """Of a state folder of version 1."""
        return self.root / "ledger.duckdb"

    @property
    def ledger_place(self) -> Path:
        """Says where the ledger is, if it is not in this folder."""
        return self.root / "ledger.json"

    @property
    def storage_place(self) -> Path:
        """Says where the files of its jobs are, if they are not in this folder."""
        return self.root / "storage.json"

    @property
    def server(self) -> Path:
        """What a server says of itself from its start to its end; its URL once it is ready."""
        return self.root / "server.json"

    @property
    def cluster(self) -> Path:
        """Address of the Ray cluster that its applications may run in, where a server has joined one; removed with them."""
        return self.root / "cluster"

    @property
    def lock(self) -> Path:
        """Held by a server from its start to its end."""
        return self.root / "server.lock"

    @property
    def ledger_lock(self) -> Path:
        """Shared by the processes that have the ledger open, on any machine that sees this folder (`jobs.storage.hold`)."""
        return self.root / "ledger.lock"

    @property
    def keys(self) -> Path:
        """API keys, as hashes. Where there is such a file, keys are asked for."""
        return self.root / "keys.json"

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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; only one server or repair at a time can. It ends with the process, however that ends. Raises `StateError`."""
        with self.lock.open("a+") as file:
            self.give_to_owner(self.lock)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StateError(
                    f"a server is running on state folder {self.root} already; stop it with: harvester stop --state {self.root}"
                ) from error
            yield

    @property
    def runtime(self) -> Path:
        """Says where the sockets of its servers are, where that is a folder of an unpredictable name."""
        return self.root / "runtime"

    @property
    def user_key(self) -> Path:
        """What tells the server's own user from other clients on the machine (`jobs.access.handle`)."""
        return self.root / "user.key"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def removals(self) -> Path:
        """In a storage: a file for each job whose removal has begun there."""
        return self.root / "removals"

    @property
    def inputs(self) -> Path:
        """What came through standard input, a folder for each."""
        return self.root / "inputs"

    @property
    def files(self) -> Path:
        """Uploaded files and the files made of batches."""
        return self.root / "files"

    @property
    def uploads(self) -> Path:
        """Tables that clients sent, a folder for each key's name, in it one for each upload."""
        return self.root / "uploads"

    @property
    def answers(self) -> Path:
        """Answers of queries that clients read in their own time, a folder for each key's name."""
        return self.root / "answers"

    @property
    def batches(self) -> Path:
        """One JSON file a batch; its rows are a job of the same id."""
        return self.root / "batches"

    @property
    def scale(self) -> Path:
        """Numbers of replicas that somebody asked for since the applications were deployed."""
        return self.root / "scale.json"

    @property
    def history(self) -> Path:
        """What the page shows of the last day. The jobs application alone writes it."""
        return self.root / "history"

    def results(self, job_id: str) -> Path:
        return self.jobs / job_id / "results"

    def results_address(self, job_id: str) -> str:
        """Where a job's parts are, as it may be shown."""
        path = self.results(job_id)
        return str(path) if self.mirror is None else self.mirror.address(path)

    def snapshot(self, job_id: str) -> Path:
        """Where the rows of a source that was copied are kept while the job may need them."""
        return self.jobs / job_id / "input"

    def spools(self, job_id: str) -> Path:
        return self.jobs / job_id / "spool"

    def spool(self, job_id: str, slice_id: int, generation: int) -> Path:
        return self.spools(job_id) / f"slice-{slice_id:06d}.g{generation}.jsonl"

    def own_folders(self) -> list[Path]:
        """Folders of this machine that hold what is kept for clients, who may not read it as files."""
        shared = None if self.mirror is None else self.mirror.folder
        return [self.root.absolute(), *([] if shared is None else [shared])]

    def forget_unmade(self, known: Collection[str]) -> None:
        """Remove what a server that died in the middle of a submit left: copied rows of jobs that are not among ``known``.

        Folders that hold results stay, whether known or not. Call it while nobody submits.
        """
        for path in self.jobs.glob("*"):
            is_staging = path.name.startswith(".staging-")
            names = {entry.name for entry in path.glob("*")}
            is_unmade = path.name not in known and bool(names) and names <= {"input", SECRETS, JOB_FILE}
            if is_staging or is_unmade:
                shutil.rmtree(path, ignore_errors=True)

    def check_free(self, min_free_bytes: int) -> None:
        """Raise `LowDiskError` where the disk has less free."""
        with suppress(OSError):  # whoever writes next says what is wrong
            free_bytes = shutil.disk_usage(self.root).free
            if free_bytes < min_free_bytes:
                raise LowDiskError(
                    f"the disk of {self.root} has {free_bytes:,} bytes free, below harvest.min_free_bytes ({min_free_bytes:,}); "
                    "free space on it, and work goes on"
                )

    def prepare(self) -> None:
        """Make the folder for this user alone, or check that it is of this version or an earlier one. Raises `StorageError`.

        A folder that other users may enter, as earlier versions made it, is closed to them, and so are the files in it.
        """
        marker = self.root / "VERSION"
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._close(marker)
            self.jobs.mkdir(mode=0o700, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            if not marker.exists() or not marker.stat().st_size:  # an empty one is what a full disk has left
                self.mark_version()
            text = marker.read_text(encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot use state folder {self.root}: {error.strerror}; give another one with --state") from error
        found = _version(text)
        if found not in range(1, STATE_VERSION + 1):
            raise StorageError(
                f"state folder {self.root} is of version {found}, this harvester writes version {STATE_VERSION}; "
                "give a new folder with --state, or run the version that made it"
            )

    def mark_version(self) -> None:
        """Record that everything in the folder is of this version. Raises `StorageError`."""
        marker, told = self.root / "VERSION", json.dumps({"version": STATE_VERSION}).encode() + b"\n"
        if not marker.exists() or marker.read_bytes() != told:
            with publish(marker) as file:
                file.write(told)

    def give_to_owner(self, *made: Path) -> None:
        """Give files that root has made in another user's folder to that user, who may run the server.

        Those ``made``; without them all files, which not while a server runs.
        """
        owner = self.root.stat()
        if os.geteuid() or not owner.st_uid:
            return
        for path in made or self.root.rglob("*"):
            if not path.lstat().st_uid:
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _close(self, marker: Path) -> None:
        found = self.root.stat()
        if os.geteuid() not in (0, found.st_uid):
            raise StorageError(f"state folder {self.root} belongs to another user; give one of your own with --state")
        if not found.st_mode & 0o077:
            return
        if not marker.exists() and any(self.root.iterdir()):
            raise StorageError(
                f"others may enter {self.root}, and it holds files that are not harvester's; give a folder of its own with --state, "
                f"or close it: chmod 700 {self.root}"
            )
        self.root.chmod(0o700)
        for path in (*self.root.glob("*"), *self.root.glob("files/*"), *self.root.glob("logs/*.log")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)


def keep_private() -> None:
    """Make files of this process and its children private to this user. For servers only: copies that commands write are the user's own."""
    os.umask(0o077)


@contextmanager
def private_files() -> Iterator[None]:
    """The same within a block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _version(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return repr(text[:40])
    return value.get("version") if isinstance(value, dict) else value


def part_name(slice_id: int) -> str:
    """One part a slice, so that a slice computed twice still is in the results once."""
    return f"part-{slice_id:06d}"
