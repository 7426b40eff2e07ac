"""What a job leaves on the disk, removed with it: results, spool, copied rows, and an uploaded or piped source that no other job reads."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from connectors.durable import storage_error
from jobs.errors import StateError
from jobs.spec import JobView
from jobs.states import ENDED
from jobs.storage.folder import StateFolder
from jobs.storage.inputs import has_rows

_ASIDE = ".staging-removed-"
BATCH = "batch_"  # prefix of the ids of jobs that run an OpenAI batch


def check_removable(view: JobView) -> None:
    """Raise `StateError` for a job that has not ended."""
    if view.state not in ENDED:
        raise StateError(f"job {view.id} is {view.state}; cancel it first: harvester cancel {view.id}")


def is_of_batch(folder: StateFolder, job_id: str) -> bool:
    """Whether the job runs a batch that its client still needs: the batch's rows are there.

    `jobs.batches.controller` removes these rows soon after the client has deleted its files. Raises `StorageError`.
    """
    return job_id.startswith(BATCH) and has_rows(folder, job_id)


def old_jobs(views: Iterable[JobView], before_s: float) -> list[JobView]:
    """The jobs that ended before ``before_s``."""
    return [view for view in views if view.state in ENDED and view.ended_at_s and view.ended_at_s < before_s]


def set_aside(jobs: Path, job_id: str) -> None:
    """Rename the job's folder within ``jobs``, the folder of all jobs, to a name that every starting server deletes.

    The ledger calls it before it forgets the job. If it dies in between, the next try removes the job. Raises `StorageError`.
    """
    own = jobs / job_id
    try:
        if own.exists():
            own.rename(jobs / f"{_ASIDE}{job_id}-{secrets.token_hex(4)}")
    except OSError as error:
        raise storage_error("remove", own, error) from error


def note_removal(folder: StateFolder, job_id: str, source: str) -> None:
    """Note in the storage, if there is one, that the job is being removed. `begun_removals` lists it until `forget_removal`.

    All three raise `StorageError`.
    """
    if folder.mirror is not None:
        folder.mirror.put(_note_of(folder, job_id), json.dumps([job_id, source]).encode())


def forget_removal(folder: StateFolder, job_id: str) -> None:
    if folder.mirror is not None:
        folder.mirror.remove(_note_of(folder, job_id))


def begun_removals(folder: StateFolder) -> list[tuple[str, str]]:
    """Ids and sources of the jobs whose removal has begun and not ended, as far as the storage knows."""
    if folder.mirror is None:
        return []
    told = [folder.mirror.read(folder.removals / name) for name in sorted(folder.mirror.names(folder.removals))]
    return [(job_id, source) for text in told if text is not None for job_id, source in [json.loads(text)]]


def _note_of(folder: StateFolder, job_id: str) -> Path:
    return folder.removals / f"{job_id}.json"


def remove_files(folder: StateFolder, job_id: str, kept: Path | None) -> None:
    """Delete the job's folder, under its own name and that of `set_aside`, and ``kept``, the folder of its uploaded or piped source.

    ``kept``: None for a source of the user's own, and for one that another job reads. Both are deleted here and in the
    storage. Raises `StorageError` where the storage does not answer.
    """
    for aside in folder.jobs.glob(f"{_ASIDE}{job_id}-*"):
        shutil.rmtree(aside, ignore_errors=True)
    for path in (folder.jobs / job_id, kept):  # the first is still there where the ledger is elsewhere, and in the storage
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            if folder.mirror is not None:
                folder.mirror.remove_folder(path)
