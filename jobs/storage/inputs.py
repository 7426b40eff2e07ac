"""A job's input in the state folder: sent to the storage where it is made, fetched from there where it is read."""

from __future__ import annotations

from pathlib import Path

from jobs.storage.folder import SECRETS, StateFolder


def fetch_input(folder: StateFolder, job_id: str, source: str) -> None:
    """Fetch a job's copied rows, its credentials, and its uploaded or piped source from the storage. Raises `StorageError`."""
    if folder.mirror is None:
        return
    folder.mirror.fetch_folder(folder.snapshot(job_id))
    folder.mirror.fetch(folder.jobs / job_id / SECRETS)
    kept = kept_input(folder, source)
    if kept is not None:
        folder.mirror.fetch_folder(kept)


def send_input(folder: StateFolder, job_id: str, source: str) -> None:
    """Send what `fetch_input` fetches to the storage, for a new job; an upload is there already. Raises `StorageError`."""
    if folder.mirror is None:
        return
    if (folder.jobs / job_id).is_dir():
        folder.mirror.send_folder(folder.jobs / job_id)
    kept = kept_input(folder, source)
    if kept is not None and kept.is_relative_to(folder.inputs):
        folder.mirror.send_folder(kept)


def forget_input(folder: StateFolder, job_id: str) -> None:
    """Remove from the storage what `send_input` sent of the job's folder. Raises `StorageError`."""
    if folder.mirror is not None:
        folder.mirror.remove_folder(folder.snapshot(job_id))
        folder.mirror.remove(folder.jobs / job_id / SECRETS)


def has_rows(folder: StateFolder, job_id: str) -> bool:
    """Whether copied rows of the job are there, or in the storage. Raises `StorageError`."""
    rows = folder.snapshot(job_id)
    return rows.exists() or (folder.mirror is not None and folder.mirror.has(rows))


def is_ours(folder: StateFolder, job_id: str, source: str) -> bool:
    """Whether the source is a file of the state folder, which never changes under its name."""
    return kept_input(folder, source) is not None or Path(source).is_relative_to(folder.snapshot(job_id))


def kept_input(folder: StateFolder, source: str) -> Path | None:
    """The folder of an uploaded source, or of one that came through standard input; None for a source of the user's own."""
    path = Path(source)
    for root, depth in ((folder.inputs, 1), (folder.uploads, 2)):  # depth of one input below its root; an upload is in its owner's folder
        if path.is_relative_to(root) and ".." not in path.parts and len(below := path.relative_to(root).parts) >= depth:
            return root.joinpath(*below[:depth])
    return None
