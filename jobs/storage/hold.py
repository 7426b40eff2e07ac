"""Who works on a state folder's ledger: the processes that have it open, or a repair, never both.

A server's lock is not enough: in a Ray cluster that was joined, or under a `RayService`, the ledger lives without a server's process.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.durable import storage_error
from connectors.errors import StorageError
from jobs.errors import StateError
from jobs.storage.folder import StateFolder

log = logging.getLogger("harvester.storage")


def hold_ledger(folder: StateFolder) -> int | None:
    """Keep `repairing` away while the returned file descriptor is open, at most until the process ends. Several may.

    None where the folder is not on this machine, as may be with a ledger in a database. Raises `StorageError` while a repair is at work.
    """
    if not folder.root.is_dir():
        return None
    file = _opened(folder)
    if not _is_locked(file, fcntl.LOCK_SH, folder):
        os.close(file)
        raise StorageError(f"harvester repair is at work on {folder.root}; it ends by itself")
    return file


@contextmanager
def repairing(folder: StateFolder) -> Iterator[None]:
    """Hold the folder while no server and no ledger is at work on it. Raises `StateError` where there may be one, `StorageError`."""
    with folder.locked():
        if folder.cluster.exists():
            address = folder.cluster.read_text(encoding="utf-8").strip()
            raise StateError(
                f"applications of {folder.root} may run in the Ray cluster at {address}, with their ledger; end them with: "
                f"harvester stop --state {folder.root}; or, if that cluster is gone, remove {folder.cluster}"
            )
        file = _opened(folder)
        try:
            if not _is_locked(file, fcntl.LOCK_EX, folder):
                raise StateError(
                    f"a process has the ledger of {folder.root} open; end it first: delete the RayService, or, after a server that was "
                    "killed, start another and stop it"
                )
            yield
        finally:
            os.close(file)


def _opened(folder: StateFolder) -> int:
    try:
        file = os.open(folder.ledger_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        folder.give_to_owner(folder.ledger_lock)
        return file
    except OSError as error:
        raise storage_error("write", folder.ledger_lock, error) from error


def _is_locked(file: int, kind: int, folder: StateFolder) -> bool:
    """Lock without waiting. Also true where the file system has no locks: that must stop neither ledger nor repair."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("ledger_lock_unsupported path=%s %s", folder.ledger_lock, error.strerror)
    return True
