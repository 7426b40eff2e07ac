"""How a command proves that the server's own user runs it: it signs requests with a key that only this user can read.

The key lies in the state folder and is never sent: another user's server that claims this state folder would learn it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress

from connectors.errors import StorageError
from jobs.storage.folder import StateFolder

HEADER = "X-Harvester-User"
MAX_AGE_S = 300.0  # both clocks are of one machine


def make_key(folder: StateFolder) -> str:
    """The key of a state folder: the one that is there, unless others may read it, or a new one. Raises `StorageError`."""
    found = read_key(folder)
    if found is not None:
        return found
    key, path = secrets.token_hex(32), folder.user_key
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(key + "\n")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}; give another state folder with --state") from error
    return key


def read_key(folder: StateFolder) -> str | None:
    """The key if this user owns it and nobody else may access it; else None."""
    try:
        with folder.user_key.open(encoding="ascii") as file:
            about = os.fstat(file.fileno())
            key = file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return key if key and about.st_mode & 0o077 == 0 and about.st_uid == os.geteuid() else None


def signed(key: str, method: str, path: str, body: bytes, now_s: float) -> str:
    """Value of `HEADER` for one request."""
    at = str(int(now_s))
    return f"{at}:{_digest(key, at, method, path, body)}"


def is_signed(key: str, value: str | None, method: str, path: str, body: bytes, now_s: float) -> bool:
    """Whether ``value`` is the signature of this request by ``key``, made within `MAX_AGE_S` of ``now_s``."""
    at, _, given = (value or "").partition(":")
    if not at.isdecimal() or len(at) > 12 or abs(now_s - int(at)) > MAX_AGE_S:
        return False
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), _digest(key, at, method, path, body).encode("ascii"))


def _digest(key: str, at: str, method: str, path: str, body: bytes) -> str:
    told = "\n".join((at, method, path, hashlib.sha256(body).hexdigest()))
    return hmac.new(key.encode("ascii"), told.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
