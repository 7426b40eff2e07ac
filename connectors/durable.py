"""Files that appear under their name whole and on disk, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from connectors.errors import StorageError

# A temporary file of another machine, or under a process id that is in use again, is left over once nothing wrote to it for this long.
LEFTOVER_AFTER_S = 3600.0

_TEMPORARY = re.compile(r"\..+\.tmp-(?P<pid>[0-9]+)-(?P<machine>[0-9a-f]{8})[0-9a-f]{8}")
_ADVICE = {
    errno.ENOSPC: "free space on this disk and go on",
    errno.EDQUOT: "free space within the quota, or raise it, and go on",
    errno.EROFS: "choose a folder on a disk that can be written (--state)",
    errno.EACCES: "give the right to write there, or choose another folder (--state)",
    errno.EPERM: "give the right to write there, or choose another folder (--state)",
    errno.EIO: "check the disk: it reports an error of its own",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away",
    errno.ENOENT: "the folder was removed while it was written to: put it back and go on",
}


def storage_error(doing: str, path: Path, error: OSError) -> StorageError:
    """One line: what failed, on which file, why, and what to do about it."""
    cause = os.strerror(error.errno).lower() if error.errno else " ".join(str(error).split())
    return StorageError(f"cannot {doing} {path}: {cause}; {_ADVICE.get(error.errno or 0, 'check the disk and the folder')}")


@contextmanager
def publish(path: Path, *, keep_first: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which appears as ``path`` when the block ends, atomically replacing any earlier file.

    With ``keep_first`` a file that someone else has put there meanwhile stays, and this one is dropped.

    The file is written under a temporary name in the same folder, synced and renamed, then the folder is synced: after the block a power
    cut cannot lose it. On any failure the temporary file is removed. Raises `StorageError` for the disk's errors, also for those inside the
    block.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{_machine()}{secrets.token_hex(4)}")
    try:
        _make_folder(path.parent)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(temporary, path, keep_first)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error("write", path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def sweep(folder: Path) -> tuple[Path, ...]:
    """Remove temporary files whose writers are dead; returns them. Files of living writers stay."""
    removed = []
    for path in sorted(folder.glob(".*.tmp-*")):
        name = _TEMPORARY.fullmatch(path.name)
        with suppress(FileNotFoundError):
            if name and _is_left_over(path, int(name["pid"]), name["machine"]):
                path.unlink()
                removed.append(path)
    return tuple(removed)


def _is_left_over(path: Path, pid: int, machine: str) -> bool:
    if machine == _machine() and not _is_alive(pid):
        return True
    return time.time() - path.stat().st_mtime > LEFTOVER_AFTER_S


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _machine() -> str:
    """Eight hex digits for this host and its PID namespace: process 7 of a container is not the host's."""
    with suppress(OSError):
        return hashlib.sha256(f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _put(temporary: Path, path: Path, keep_first: bool) -> None:
    if keep_first:
        with suppress(OSError):  # a file system without hard links
            path.hardlink_to(temporary)
        if path.exists():
            return
    temporary.replace(path)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
