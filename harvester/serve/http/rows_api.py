"""Rows in and out over HTTP: files uploaded in pieces, results as a stream of Arrow record batches. Memory does not grow with either."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from connectors.parquet.parts import PartsSink
from connectors.paths.rules import SourceRules
from harvester.errors import NotFoundError, ParameterError, StorageError
from harvester.serve.access.identity import Identity
from harvester.serve.access.who import Who
from harvester.serve.http.owned import LedgerJobs, own_job
from jobs.folder import StateFolder

SCHEME = "upload:"
ARROW = "application/vnd.apache.arrow.stream"
DIGEST = "x-content-sha256"
BATCH_ROWS = 1024
_ID = re.compile(r"[0-9a-f]{32,64}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,120}")


class Uploads:
    """Files that clients sent, a folder for each key's name and upload. A file that is not whole yet ends in ``.part``."""

    def __init__(self, folder: StateFolder) -> None:
        self._root = folder.root / "uploads"

    def path(self, upload_id: str, name: str, who: Identity) -> Path:
        """Where the whole file is to lie. Raises `ParameterError` for names that cannot be paths."""
        if not _ID.fullmatch(upload_id) or not _NAME.fullmatch(name):
            raise ParameterError("an upload is named by 32 to 64 hex digits and a file name of letters, digits, dots, - and _", "name")
        owner = hashlib.sha256((who.name or "").encode()).hexdigest()[:16]
        return self._root / owner / upload_id / name

    def opened(self, uri: str, who: Identity) -> tuple[str, SourceRules]:
        """Path and rules of ``upload:ID/NAME``. Raises `NotFoundError` where the key has no such whole file."""
        upload_id, _, name = uri.removeprefix(SCHEME).partition("/")
        path = self.path(upload_id, name, who)
        if not path.is_file():
            raise NotFoundError(f"{uri[:200]} is not uploaded, or not whole; upload the file again")
        return str(path), SourceRules(roots=(str(path.parent),))


def state_of(path: Path) -> dict[str, Any]:
    """Bytes that are here, and whether the file is whole."""
    is_whole = path.is_file()
    part = path if is_whole else _part(path)
    size = part.stat().st_size if part.exists() else 0
    return {"bytes": size, "is_whole": is_whole, "uri": f"{SCHEME}{path.parent.name}/{path.name}"}


async def append(path: Path, offset: int, body: AsyncIterator[bytes], digest: str | None, *, is_last: bool) -> dict[str, Any]:
    """Write a piece at ``offset``. The same piece sent again has no further effect. Holds one chunk in memory.

    Raises `ParameterError` for a piece that leaves a gap, or whose SHA-256 is not ``digest``; what was there before stays.
    """
    if path.is_file():
        async for _ in body:
            pass
        return state_of(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = hashlib.sha256()
    try:
        with open(os.open(_part(path), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:  # noqa: PTH123, ASYNC230
            size = file.seek(0, os.SEEK_END)
            if offset > size:
                raise ParameterError(f"the upload has {size} bytes; go on there, not at {offset}", "offset")
            file.seek(offset)
            async for chunk in body:
                found.update(chunk)
                file.write(chunk)
            if digest is not None and found.hexdigest() != digest.lower():
                file.truncate(offset)
                raise ParameterError(f"the piece at {offset} arrived damaged: its SHA-256 is not that of {DIGEST}; send it again", DIGEST)
            file.truncate()
            file.flush()
            if is_last:
                await asyncio.to_thread(os.fsync, file.fileno())
        if is_last:
            _part(path).replace(path)
    except OSError as error:
        raise StorageError(f"cannot keep the upload: {error.strerror}; make room for the server's state folder") from error
    return state_of(path)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class _Pipe:
    """What Arrow's writer wrote since the last look."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def arrow_of(folder: Path, after: str | None) -> Iterator[bytes]:
    """The parts behind ``after`` in the order of their names, as one Arrow IPC stream; each batch's metadata names its part."""
    parts = [part for part in PartsSink(folder).parts() if after is None or part.name > after]
    pipe = _Pipe()
    writer: Any = None
    for part in parts:
        with pq.ParquetFile(part.path, page_checksum_verification=True) as file:
            schema = file.schema_arrow.remove_metadata()
            writer = writer or pa.ipc.new_stream(pa.PythonFile(pipe, "w"), schema)
            for batch in file.iter_batches(BATCH_ROWS):
                writer.write_batch(batch.replace_schema_metadata(None), custom_metadata={"part": part.name})
                yield pipe.taken()
    writer = writer or pa.ipc.new_stream(pa.PythonFile(pipe, "w"), pa.schema([]))
    writer.close()
    yield pipe.taken()


def add_rows(app: FastAPI, ledger: LedgerJobs, folder: StateFolder) -> Uploads:
    """Add uploads and ``GET /jobs/JOB/results``."""
    uploads = Uploads(folder)

    @app.get("/uploads/{upload_id}/{name}", include_in_schema=False)
    async def known(upload_id: str, name: str, who: Who) -> dict[str, Any]:
        return state_of(uploads.path(upload_id, name, who))

    @app.put("/uploads/{upload_id}/{name}", include_in_schema=False)
    async def piece(upload_id: str, name: str, request: Request, who: Who, offset: int = 0, last: bool = False) -> dict[str, Any]:
        path = uploads.path(upload_id, name, who)
        return await append(path, offset, request.stream(), request.headers.get(DIGEST), is_last=last)

    @app.delete("/uploads/{upload_id}/{name}", include_in_schema=False)
    async def forget(upload_id: str, name: str, who: Who) -> dict[str, Any]:
        path = uploads.path(upload_id, name, who)
        await asyncio.to_thread(shutil.rmtree, path.parent, ignore_errors=True)
        return state_of(path)

    @app.get("/jobs/{job_id}/results", include_in_schema=False)
    async def results(job_id: str, who: Who, after: str | None = None) -> StreamingResponse:
        view = await own_job(ledger, job_id, who)
        return StreamingResponse(arrow_of(folder.results(view.id), after), media_type=ARROW)

    return uploads
