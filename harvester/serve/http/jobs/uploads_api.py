"""``/uploads``: files that clients send in pieces. Memory does not grow with them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import FastAPI, Query, Request

from connectors.durable import storage_error, sync_folder
from connectors.paths.rules import SourceRules
from harvester.errors import NotFoundError, ParameterError, StateError, StorageError, TooLargeError
from harvester.serve.access.identity import Identity
from harvester.serve.access.who import Who
from harvester.serve.http.jobs.intake import Intake, Receipt, size_of
from harvester.serve.http.jobs.owned import LedgerNow
from jobs.batches.files import FileStore
from jobs.spec import JobRequest
from jobs.storage.folder import StateFolder
from jobs.threads import with_storage

SCHEME = "upload:"
DIGEST = "x-content-sha256"
KEPT_S = 24 * 3600.0  # an upload that no job names
MAX_DEPTH = 8  # of a path: folders and file; as in `harvester.api.uploads`, like the next
MAX_NAME_BYTES = 220  # of a folder or file: file systems take 255, and names of what is being written are longer than the file's
_PART = ".{}.part"  # name of a file that is not whole: no file of a user's begins with a dot
_ID = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,40}\.)?[0-9a-f]{32,64}")
_SEGMENT = re.compile(r"[^./*?\[\]:\\\x00-\x1f\x7f][^/*?\[\]:\\\x00-\x1f\x7f]*")


class Uploads:
    """Uploaded files, in one folder for each key's name and upload. A file that is not complete yet has a hidden name."""

    def __init__(self, folder: StateFolder, min_free_bytes: int = 0) -> None:
        self._folder = folder
        self._intake = Intake(FileStore(folder.files, time.time), folder, min_free_bytes)

    def path(self, upload_id: str, name: str, who: Identity) -> Path:
        """Path of the complete file. Raises `ParameterError` for names that cannot be paths."""
        parts = name.split("/")
        if not _ID.fullmatch(upload_id) or not all(_SEGMENT.fullmatch(part) for part in parts):
            raise ParameterError(
                "an upload is named by 32 to 64 hex digits and a relative path without . at a name's beginning and without * ? [ ] : \\",
                "name",
            )
        if len(parts) > MAX_DEPTH:
            raise ParameterError(f"{name[:200]} has {len(parts)} levels; the path of an upload has at most {MAX_DEPTH}: move it up", "name")
        if (most := max(len(part.encode("utf-8", "surrogatepass")) for part in parts)) > MAX_NAME_BYTES:
            raise ParameterError(f"a name in {name[:200]} has {most} bytes; an upload's have at most {MAX_NAME_BYTES}: shorten it", "name")
        return self._own(upload_id, who).joinpath(*parts)

    def opened(self, uri: str, who: Identity) -> tuple[str, SourceRules]:
        """Path and rules of ``upload:ID/NAME`` or ``upload:ID``. Raises `NotFoundError` where the key has no such whole file or folder."""
        upload_id, _, name = uri.removeprefix(SCHEME).partition("/")
        folder = self._own(upload_id, who) if _ID.fullmatch(upload_id) else None
        if folder is not None and self._folder.mirror is not None:
            self._folder.mirror.fetch_folder(folder)
        path = self.path(upload_id, name, who) if name or folder is None else folder
        is_whole = path.is_file() if name else path.is_dir() and not any(path.rglob(_PART.format("*")))
        if folder is None or not is_whole:
            raise NotFoundError(f"{uri[:200]} is not uploaded, or not whole; upload it again")
        _touch(folder)
        return str(path), SourceRules(roots=(str(folder),))

    async def resolved(self, request: JobRequest, who: Identity) -> tuple[JobRequest, SourceRules | None]:
        """The request over an upload, at the path of its files, and what may be read there; any other unchanged, and None.

        Raises `NotFoundError` as `opened`.
        """
        if not request.source.uri.startswith(SCHEME):
            return request, None
        path, rules = await with_storage(self.opened, request.source.uri, who)
        return request.at(path), rules

    async def append(
        self, path: Path, offset: int, body: AsyncIterator[bytes], digest: str | None, *, is_last: bool, who: Identity
    ) -> dict[str, Any]:
        """Write a piece at ``offset``. Sending a piece again has no further effect. Holds one chunk in memory.

        Raises `ParameterError` for a piece that leaves a gap, or whose SHA-256 is not ``digest``; the bytes before ``offset`` stay.
        `TooLargeError` above the caller's limits, `LowDiskError` if the disk is nearly full.
        """
        if path.is_file():
            async for _ in body:
                pass
            return state_of(path, self.root(path))
        _check_offset(offset, size_of(_part(path)))  # before there is a folder: such pieces count as no request
        try:
            async with self._intake.receiving(who, _part(path)) as receipt:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(os.open(_part(path), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:  # noqa: PTH123, ASYNC230
                    _check_offset(offset, file.seek(0, os.SEEK_END))
                    file.seek(offset)
                    found = await _written(file, path.name, body, receipt, who.limits.max_upload_bytes)
                    if digest is not None and found != digest.lower():
                        file.truncate(offset)
                        raise ParameterError(
                            f"the piece at {offset} arrived damaged: its SHA-256 is not that of {DIGEST}; send it again", DIGEST
                        )
                    if is_last:
                        file.truncate()
                        file.flush()
                        await asyncio.to_thread(os.fsync, file.fileno())
        except OSError as error:
            raise storage_error("keep the upload in", path, error) from error
        return state_of(path, self.root(path))

    async def finish(self, path: Path, digest: str | None) -> dict[str, Any]:
        """Complete the file after its last piece. Raises `ParameterError`, and removes the file, if its SHA-256 is not ``digest``."""
        part = _part(path)
        if not path.is_file():
            try:
                if digest is not None and await asyncio.to_thread(_digest_of, part) != digest.lower():
                    part.unlink(missing_ok=True)
                    raise ParameterError(
                        f"{path.name} arrived damaged: the SHA-256 of the whole is not {digest}; upload it again", "digest"
                    )
                if self._folder.mirror is not None:
                    await with_storage(self._folder.mirror.send, path, source=part)
                part.replace(path)
                sync_folder(path.parent)
            except OSError as error:
                raise storage_error("keep the upload", path, error) from error
        return state_of(path, self.root(path))

    def forget(self, folder: Path) -> None:
        """Remove an upload. Raises `StorageError` where the storage does not answer."""
        shutil.rmtree(folder, ignore_errors=True)
        if self._folder.mirror is not None:
            self._folder.mirror.remove_folder(folder)

    def stale(self, now_s: float) -> list[Path]:
        """Folders of the uploads that nobody wrote to or asked for in a day. Jobs may read them."""
        found = []
        for folder in self._folder.uploads.glob("*/*"):
            with suppress(OSError):
                if now_s - max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) > KEPT_S:
                    found.append(folder)
        return found

    def sweep(self, sources: Collection[str], now_s: float) -> None:
        """Remove the uploads that are `stale` and that no job reads (``sources``)."""
        for folder in self.stale(now_s):
            if not any(source == str(folder) or source.startswith(f"{folder}/") for source in sources):
                with suppress(StorageError):
                    self.forget(folder)

    def _own(self, upload_id: str, who: Identity) -> Path:
        return self._folder.uploads / who.folder / upload_id

    def root(self, path: Path) -> Path:
        """Folder of the upload that ``path`` belongs to."""
        return self._folder.uploads.joinpath(*path.relative_to(self._folder.uploads).parts[:2])


def state_of(path: Path, root: Path) -> dict[str, Any]:
    """Bytes received, whether the file is complete, and its address."""
    is_whole = path.is_file()
    part = path if is_whole else _part(path)
    return {"bytes": size_of(part), "is_whole": is_whole, "uri": f"{SCHEME}{root.name}/{path.relative_to(root)}"}


def _touch(folder: Path) -> None:
    """Begin the day anew for which an upload is kept that no job reads."""
    with suppress(OSError):  # it is not there
        os.utime(folder)


def _check_offset(offset: int, size: int) -> None:
    if offset > size:
        raise ParameterError(f"the upload has {size} bytes; go on there, not at {offset}", "offset")


def _part(path: Path) -> Path:
    return path.with_name(_PART.format(path.name))


async def _written(file: BinaryIO, name: str, body: AsyncIterator[bytes], receipt: Receipt, max_bytes: int | None) -> str:
    """Write a piece where ``file`` stands; its SHA-256. Raises `TooLargeError`, and `LowDiskError`, before the file is too large."""
    found = hashlib.sha256()
    async for chunk in body:
        end = file.tell() + len(chunk)
        if max_bytes is not None and end > max_bytes:
            raise TooLargeError(f"{name} would be above the {max_bytes:,} bytes that this API key may upload; split it")
        await receipt.grow(end)
        found.update(chunk)
        file.write(chunk)
    return found.hexdigest()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_uploads(app: FastAPI, ledger: LedgerNow, folder: StateFolder, min_free_bytes: int) -> Uploads:
    """Add ``/uploads``."""
    uploads = Uploads(folder, min_free_bytes)

    @app.get("/uploads/{upload_id}/{name:path}", include_in_schema=False)
    async def known(upload_id: str, name: str, who: Who) -> dict[str, Any]:
        path = uploads.path(upload_id, name, who)
        _touch(uploads.root(path))  # who asks is about to submit it: no sweep may take it meanwhile
        return state_of(path, uploads.root(path))

    @app.put("/uploads/{upload_id}/{name:path}", include_in_schema=False)
    async def piece(
        upload_id: str,
        name: str,
        request: Request,
        who: Who,
        offset: Annotated[int, Query(ge=0)] = 0,
        last: bool = False,
        digest: str | None = None,
    ) -> dict[str, Any]:
        path = uploads.path(upload_id, name, who)
        state = await uploads.append(path, offset, request.stream(), request.headers.get(DIGEST), is_last=last, who=who)
        return await uploads.finish(path, digest) if last else state

    @app.delete("/uploads/{upload_id}/{name:path}", include_in_schema=False)
    async def forget(upload_id: str, name: str, who: Who) -> dict[str, Any]:
        path = uploads.path(upload_id, name, who)
        root = uploads.root(path)
        for view in (await ledger.now(0)).views:
            if Path(view.source).is_relative_to(root):
                raise StateError(f"job {view.id} reads this upload; cancel it first, or let it end")
        await with_storage(uploads.forget, root)
        return state_of(path, root)

    return uploads
