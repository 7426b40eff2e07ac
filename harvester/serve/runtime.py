"""The private folder of a running server, and of a node of a joined cluster: sockets and configuration of HAProxy, sockets and logs of Ray.

Its path must be short. A socket's path has at most 107 bytes; HAProxy's consists of the folder, Ray's 56-digit node id, ``admin.sock``
and, while it starts, a process id. Only this user may write to the folder, because whoever can write to it controls the server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from connectors.durable import storage_error
from harvester.errors import StorageError
from jobs.storage.folder import StateFolder

MAX_PATH_BYTES = 107 - len("/" + 56 * "n" + "/admin.sock.1234567.tmp")
_PREFIX = "hv-"


def runtime_folder(folder: StateFolder, mark: str) -> Path:
    """The folder of this state folder's server, created if it is missing.

    It is in ``$XDG_RUNTIME_DIR``, else in the state folder, else among temporary files under an unpredictable name, which the state folder
    remembers. Skipped are folders of other users or that others may enter, links, and paths that are too long. Skipped too is logind's
    folder of a user, which is removed at logout while the server runs on.
    Raises `StorageError`.
    """
    for path in _candidates(folder, mark):
        if len(os.fsencode(path)) <= MAX_PATH_BYTES and is_private(path.parent, shared=True) and _make(path):
            return path
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        if len(os.fsencode(parent)) + len(f"/{_PREFIX}12345678") <= MAX_PATH_BYTES:
            return _remembered(folder, Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)))
    raise StorageError(f"no private folder of at most {MAX_PATH_BYTES} bytes for sockets; set XDG_RUNTIME_DIR to a short one of your own")


@contextmanager
def held(runtime: Path) -> Iterator[None]:
    """Lock the folder within the block, so that systemd-tmpfiles, which removes old temporary files, leaves it alone."""
    folder = os.open(runtime, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


def node_folder(port: int) -> Path:
    """HAProxy's folder on every node of a joined cluster. ``port``: the server's. Ray Serve needs the same path on all nodes."""
    return Path("/tmp") / f"{_PREFIX}{os.geteuid()}-{port}"


def make_node_folder(path: Path) -> None:
    """Create the folder. Raises `StorageError` if it belongs to another user, or others may enter it."""
    if not _make(path):
        raise StorageError(f"{path} is not a private folder of user {os.geteuid()}; HAProxy's sockets are to be there: remove it")


def ray_folder(runtime: Path) -> Path:
    """Ray's folder of sessions. Removes all but the newest, which has the logs of the last server."""
    path = runtime / "ray"
    path.mkdir(mode=0o700, exist_ok=True)
    for session in sorted(path.glob("session_2*"))[:-1]:
        shutil.rmtree(session, ignore_errors=True)
    return path


def clear(runtime: Path) -> None:
    """Remove what is of no use once the server has ended; Ray's logs stay."""
    with suppress(OSError):  # a failed removal is not worth an error when the server ends
        for path in runtime.iterdir():
            if path.name != "ray":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_private(path: Path, *, shared: bool = False) -> bool:
    """Whether ``path`` is a folder of this user, no link, that nobody else may enter. ``shared``: or root's, sticky, like ``/tmp``."""
    try:
        found = path.lstat()
    except OSError:
        return False
    own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and (own or (shared and found.st_uid == 0 and bool(found.st_mode & stat.S_ISVTX)))


def _candidates(folder: StateFolder, mark: str) -> Iterator[Path]:
    with suppress(OSError):
        yield Path(folder.runtime.read_text(encoding="utf-8").strip() or "/")
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and Path(given) != Path(f"/run/user/{os.geteuid()}"):
        yield Path(given) / f"{_PREFIX}{mark[:8]}"
    yield folder.root / "run"


def _make(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return is_private(path)


def _remembered(folder: StateFolder, path: Path) -> Path:
    try:
        folder.runtime.write_text(f"{path}\n", encoding="utf-8")
    except OSError as error:
        raise storage_error("write", folder.runtime, error) from error
    return path
