"""API keys: made once, shown once, kept as hashes in a file that every process of the server reads again when it changes."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from connectors.durable import storage_error
from harvester.core import Role
from harvester.errors import NotFoundError, StateError, StorageError, UsageError
from harvester.serve.access.identity import Identity
from jobs.access.limits import Limits
from jobs.frozen import Frozen, of_newer
from jobs.storage.publish import publish_to

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

log = logging.getLogger("harvester.access")

PREFIX = "hk_"
SECRET_BYTES = 32
CONFIG_NAME = "config"  # owner of what is made with keys of the configuration
_SINCE = {"max_inputs"}  # limits added since keys store only those that were given; each later one belongs here too
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class KeyRecord(Frozen):
    """What is kept of a key. The key itself is not."""

    name: str = Field(description="Owner of the jobs, files and batches made with it.")
    digest: str = Field(description="SHA-256 of the key, in hex: of 256 random bits, which nobody guesses from it.")
    roles: frozenset[Role]
    created_at_s: float
    expires_at_s: float | None = None
    limits: Limits | None = Field(default=None, description="None: those of the configuration.")

    def is_valid(self, now_s: float) -> bool:
        return self.expires_at_s is None or now_s < self.expires_at_s


class KeyBook(Frozen):
    """Content of the key file. If the file exists, the server asks for keys, even if none is left."""

    keys: tuple[KeyRecord, ...] = ()


class KeyFile:
    """Reads and changes the key file: one writer at a time, and the file is replaced atomically."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time, mirror: Mirror | None = None) -> None:
        """``mirror``: storage of the file for the server's other machines, which follow it."""
        self.path = path
        self._now_s = now_s
        self._mirror = mirror

    def stamp(self) -> tuple[int, ...] | None:
        """Another value for each edition of the file; None: there is no file. Raises `StorageError`."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> KeyBook:
        """Content of the file; no file is a book without keys. Raises `StorageError` if it is damaged."""
        if self._mirror is not None:
            self._mirror.fetch(self.path)
        try:
            return KeyBook.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return KeyBook()
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        except ValidationError as error:
            told = f"the file of keys {self.path} is damaged; put a copy back, or remove it and make new keys"
            raise StorageError(of_newer(self.path, error) or told) from error

    def add(self, name: str, roles: Sequence[Role], expires_at_s: float | None = None, limits: Limits | None = None) -> str:
        """Make a key and return it. Raises `UsageError` for an invalid name, `StateError` for one that is taken."""
        if not _NAME.fullmatch(name) or name == CONFIG_NAME:
            raise UsageError(f"{name!r} cannot name a key; use up to 63 of a-z, 0-9, dot, dash and underscore, other than {CONFIG_NAME}")
        key = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        now_s = self._now_s()
        record = KeyRecord(
            name=name, digest=_digest(key), roles=frozenset(roles), created_at_s=now_s, expires_at_s=expires_at_s, limits=limits
        )
        with self._changing():
            kept = [one for one in self.read().keys if one.name != name or one.is_valid(now_s)]
            if any(one.name == name for one in kept):
                raise StateError(f"there is a key {name}; choose another name, or end it first with: harvester key revoke {name}")
            self._write(KeyBook(keys=(*kept, record)))
        return key

    def revoke(self, name: str) -> KeyRecord:
        """Take a key out; requests with it are refused from now on. Raises `NotFoundError`."""
        with self._changing():
            book = self.read()
            found = next((one for one in book.keys if one.name == name), None)
            if found is None:
                raise NotFoundError(f"unknown key {name!r}; list them with: harvester key list")
            self._write(KeyBook(keys=tuple(one for one in book.keys if one.name != name)))
        return found

    def _write(self, book: KeyBook) -> None:
        with publish_to(self._mirror, self.path) as file:
            os.fchmod(file.fileno(), 0o600)
            self._give(file.fileno())
            file.write(book.model_dump_json(indent=1, exclude_unset=True).encode())

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error("write", self.path, error) from error
        try:
            self._give(lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _give(self, file: int) -> None:
        """Give a file that root writes to the owner of its folder, before the server, which may run as that user, sees it."""
        if os.geteuid() == 0:
            owner = self.path.parent.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)


class KeyRing:
    """Finds whom a key belongs to. Knows the keys of the configuration, which may do everything, and those of the file.

    The file is checked with each request, and read when it changed or could not be read before. If it has gone or is damaged, its keys
    let nobody in: a mistake must not open a server.
    """

    def __init__(
        self,
        fixed: Sequence[str] = (),
        path: Path | None = None,
        limits: Limits | None = None,
        now_s: Callable[[], float] = time.time,
        *,
        asks: bool = False,
    ) -> None:
        """``asks``: a key is asked for even if there is none."""
        self._limits = limits or Limits()
        self._fixed = {_digest(key) for key in fixed}
        self._file = None if path is None else KeyFile(path)
        self._now_s = now_s
        self._stamp: tuple[int, ...] | None = None  # of the file when it was read
        self._failure: str | None = None  # why it could not be read the last time
        self._asks = asks or bool(self._fixed)
        self._records: dict[str, KeyRecord] = {}  # by digest
        self._look()

    def asks_for_key(self) -> bool:
        self._look()
        return self._asks

    def has_keys(self) -> bool:
        """Whether there is a key, valid or not, or a file that cannot be read and may have some."""
        self._look()
        return bool(self._fixed or self._records or self._failure)

    def identify(self, bearer: str) -> Identity | None:
        self._look()
        given = _digest(bearer)
        if given in self._fixed:  # the time of a hash lookup tells nothing about the key
            return Identity(CONFIG_NAME, frozenset({Role.ADMIN}), self._limits, given)
        record = self._records.get(given)
        if record is None or not record.is_valid(self._now_s()):
            return None
        return Identity(record.name, record.roles, merged(self._limits, record.limits))

    def _look(self) -> None:
        if self._file is None:
            return
        try:
            stamp = self._file.stamp()
            if stamp == self._stamp and self._failure is None:
                return
            self._records = {record.digest: record for record in self._file.read().keys}
            self._stamp, self._failure = stamp, None
        except StorageError as error:
            if error.message != self._failure:
                log.error("keys_unreadable %s", error.message)
            self._records, self._failure = {}, error.message
        self._asks = True


def merged(common: Limits, own: Limits | None) -> Limits:
    """The limits of all keys, overridden by those that one key has of its own."""
    if own is None:
        return common
    given = own.model_fields_set
    if given | _SINCE == set(Limits.model_fields):  # of an earlier version, which also stored limits that nobody gave
        given = {name for name, field in Limits.model_fields.items() if getattr(own, name) != field.default}
    return common.model_copy(update={name: getattr(own, name) for name in given})


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
