"""Uploaded files and the files made of batches: content and metadata, under random ids.

``file-ID.data`` holds the content, ``file-ID.json`` the metadata. The second is written last and removed first, so that a file is
complete or absent. Several processes may use one folder. Nothing that a client sends is ever part of a path.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from connectors.durable import storage_error, sweep
from connectors.errors import StorageError
from jobs.errors import NotFoundError
from jobs.frozen import Frozen, of_newer
from jobs.storage.publish import publish_to

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

log = logging.getLogger("harvester.files")

_ID = re.compile(r"file-[0-9a-f]{24}")
_LEFTOVER_AFTER_S = 3600.0  # content without metadata: a writer died, or is about to write it
MAX_GONE = 10_000  # files whose place in the list is remembered: a page has as many at most


class StoredFile(Frozen):
    """Metadata of a file. Never changes."""

    id: str
    filename: str = Field(description="As the client named it; shown, never used as a path.")
    purpose: str = Field(description="`batch` or `batch_output`.")
    bytes: int
    created_at_s: float
    expires_at_s: float | None = None
    owner: str | None = Field(default=None, description="Name of the API key that made it. None: of a server without keys.")

    def to_openai(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at_s),
            "expires_at": None if self.expires_at_s is None else int(self.expires_at_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def no_such_file(file_id: str) -> NotFoundError:
    return NotFoundError(f"No such File object: {file_id[:80]}; list them with GET /v1/files")


class FileStore:
    """``now_s`` is the wall clock; ``mirror``: what the folder is a copy of, where other machines have the files too.

    Every method reads or writes files: call them from threads, several at once if need be.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float], mirror: Mirror | None = None) -> None:
        self._folder = folder
        self._now_s = now_s
        self._mirror = mirror
        self._known: dict[str, StoredFile] = {}
        self._gone: deque[StoredFile] = deque(maxlen=MAX_GONE)  # the last that went since this store was opened

    def content(self, file_id: str) -> Path:
        """Where the content of a file lies, or is to be published. ``file_id`` is of this store's making."""
        assert _ID.fullmatch(file_id), f"not a file id: {file_id!r}"
        return self._folder / f"{file_id}.data"

    def fetched(self, file_id: str) -> Path:
        """`content`, fetched from the storage where it is not here. Raises `StorageError`."""
        path = self.content(file_id)
        if self._mirror is not None:
            self._mirror.fetch(path)
        return path

    def _about(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"

    def enter(self, file_id: str, filename: str, purpose: str, expires_after_s: int | None = None, owner: str | None = None) -> StoredFile:
        """Register a file whose content has been published. Registering the same id again replaces its metadata."""
        now_s = self._now_s()
        stored = StoredFile(
            id=file_id,
            filename=filename,
            purpose=purpose,
            bytes=self.content(file_id).stat().st_size,
            created_at_s=now_s,
            expires_at_s=None if expires_after_s is None else now_s + expires_after_s,
            owner=owner,
        )
        if self._mirror is not None:
            self._mirror.send(self.content(file_id))
        with publish_to(self._mirror, self._about(file_id)) as file:
            file.write(stored.model_dump_json(exclude_defaults=True).encode())
        self._known[file_id] = stored
        return stored

    def get(self, file_id: str) -> StoredFile:
        """Raises `NotFoundError`, for whatever is not the id of a file that is there."""
        if _ID.fullmatch(file_id) and self._is_there(file_id):
            stored = self._read(file_id)
            if stored is not None and not self._is_over(stored):
                return stored
        raise no_such_file(file_id)

    def _is_there(self, file_id: str) -> bool:
        path = self._about(file_id)
        try:
            return path.exists() if self._mirror is None else self._mirror.fetch(path)
        except OSError as error:
            raise storage_error("read", path, error) from error

    def delete(self, file_id: str) -> None:
        """Raises `NotFoundError`. Who has the content open reads on."""
        self._remove(self.get(file_id).id)

    def list(self, with_gone: str | None = None) -> list[StoredFile]:
        """Newest first. A file whose metadata cannot be read is left out, and logged.

        ``with_gone``: an id that keeps its place in the list after its file has gone, so that a page can begin behind it.
        Raises `StorageError` where the folder cannot be listed.
        """
        try:
            ids, read = self._ids(self._fetched_names()), self._read  # fetches several at once
        except StorageError:
            ids, read = self._ids(self._names()), self._fetched
        found = [stored for file_id in ids if (stored := _readable(read, file_id)) is not None]
        there = [stored for stored in found if stored.id == with_gone or not self._is_over(stored)]
        if all(stored.id != with_gone for stored in there):
            there += [stored for stored in tuple(self._gone) if stored.id == with_gone][-1:]
        return sorted(there, key=lambda stored: (stored.created_at_s, stored.id), reverse=True)

    def there(self, wanted: Collection[str]) -> set[str]:
        """Which of the ids ``wanted`` are of files that are there. Asks a storage once, and once more for each file that is new to it.

        A file whose metadata cannot be read is there: nobody let it go. Raises `StorageError` where the folder cannot be listed.
        """
        return {file_id for file_id in self._ids(self._names()) if file_id in wanted and not self._is_gone(file_id)}

    def _is_gone(self, file_id: str) -> bool:
        try:
            stored = self._fetched(file_id)
        except StorageError:
            return False
        return stored is None or self._is_over(stored)

    def _ids(self, names: Collection[str]) -> Sequence[str]:
        """Of the files that are there, given the names in the folder; all others are forgotten."""
        ids = {name.removesuffix(".json") for name in names if name.endswith(".json")}
        for file_id in tuple(self._known):
            if file_id not in ids:
                self._forget(file_id)
        return [file_id for file_id in ids if _ID.fullmatch(file_id)]

    def _fetched_names(self) -> Collection[str]:
        """`_names`, with all metadata fetched, several at once. Raises `StorageError` where one cannot be."""
        if self._mirror is None:
            return self._names()
        return [path.name for path in self._mirror.fetch_folder(self._folder, ".json")]

    def _names(self) -> Collection[str]:
        if self._mirror is not None:
            return self._mirror.names(self._folder)
        try:
            return [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("list", self._folder, error) from error

    def sweep(self) -> None:
        """Remove the files whose time is over, and what dead writers have left. A file that cannot be read or removed is passed over.

        Raises `StorageError` where the folder cannot be swept.
        """
        for file_id in self._ids(self._names()):
            try:
                stored = self._fetched(file_id)
                if stored is not None and self._is_over(stored):
                    self._remove(file_id)
            except StorageError as error:
                log.warning("file_not_swept %s", error.message)
        try:
            for path in self._folder.glob("file-*.data"):
                with suppress(FileNotFoundError):
                    if not path.with_suffix(".json").exists() and self._now_s() - path.stat().st_mtime > _LEFTOVER_AFTER_S:
                        path.unlink()
            sweep(self._folder)
        except OSError as error:
            raise storage_error("sweep", self._folder, error) from error

    def _is_over(self, stored: StoredFile) -> bool:
        return stored.expires_at_s is not None and stored.expires_at_s <= self._now_s()

    def _fetched(self, file_id: str) -> StoredFile | None:
        """`_read`, of a file that may lie in the storage alone."""
        return self._read(file_id) if file_id in self._known or self._is_there(file_id) else None

    def _read(self, file_id: str) -> StoredFile | None:
        """None: deleted meanwhile. Raises `StorageError`."""
        stored = self._known.get(file_id)
        if stored is None:
            path = self._about(file_id)
            try:
                stored = self._known[file_id] = StoredFile.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                return None
            except OSError as error:
                raise storage_error("read", path, error) from error
            except ValueError as error:
                raise StorageError(of_newer(path, error) or f"{path} is damaged; remove it, and upload the file again") from error
        return stored

    def _remove(self, file_id: str) -> None:
        paths = (self._about(file_id), self.content(file_id))
        if self._mirror is not None:
            for path in paths:
                self._mirror.remove(path)
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", self._about(file_id), error) from error
        self._forget(file_id)

    def _forget(self, file_id: str) -> None:
        stored = self._known.pop(file_id, None)
        if stored is not None:
            self._gone.append(stored)


def _readable(read: Callable[[str], StoredFile | None], file_id: str) -> StoredFile | None:
    try:
        return read(file_id)
    except StorageError as error:
        log.warning("file_not_listed %s", error.message)
        return None
