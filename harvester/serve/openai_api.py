"""OpenAI's Files and Batch API over HTTP. Knows the ledger only through the controller, so tests run it without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from harvester.core import __version__
from harvester.errors import NotFoundError, ParameterError
from harvester.serve.contract import describe, refusal
from harvester.serve.openai_errors import PlainJson, answer_of, handle_errors
from harvester.serve.openai_objects import BatchObject, FileDeleted, FileObject, OpenAiRefusal, Page, answers
from harvester.serve.upload import boundary_of, receive, too_large
from harvester.serve.walls import CrossSiteWall, KeyWall
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore, StoredFile, new_file_id
from jobs.batches.page import list_object, page
from jobs.batches.record import BatchWish, ExpiresAfter

CHUNK_BYTES = 1 << 20
FORM_BYTES = 1 << 16  # of a form around its file
_UPLOAD: dict[str, Any] = {  # what `receive` reads; FastAPI would read the whole form first to know it
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
                    },
                }
            }
        },
    },
    "responses": {"413": refusal(413, OpenAiRefusal)},
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
}


class OpenAiApp(FastAPI):
    """Its routes have full paths, because Serve mounts it under several prefixes, each as an application of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = ""
        await super().__call__(scope, receive, send)


def openai_api(
    files: FileStore | None,
    controller: BatchController | None,
    *,
    max_bytes: int | None = None,
    keys: Sequence[str] = (),
    hosts: Collection[str] | None = None,
) -> OpenAiApp:
    """The application: ``/v1/files`` where it is given ``files``, ``/v1/batches`` where it is given a ``controller``.

    ``max_bytes``: of an upload. ``keys``: API keys, one of which each request must bear; none: no key is asked for. ``hosts``: see
    `CrossSiteWall`.
    """
    prefix = "/v1/batches" if files is None else "/v1/files"
    app = OpenAiApp(
        title="OpenAI files and batches",
        version=__version__,
        default_response_class=PlainJson,
        redirect_slashes=False,
        openapi_url=f"{prefix}/openapi.json",  # reached through Serve, which knows the prefix alone
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(CrossSiteWall, hosts=hosts, answer=answer_of)
    app.add_middleware(KeyWall, keys=keys, answer=answer_of)
    handle_errors(app)
    describe(app, OpenAiRefusal, asks_for_key=bool(keys))
    if files is not None:
        _files(app, files, max_bytes)
    if controller is not None:
        _batches(app, controller)
    return app


def _files(app: FastAPI, store: FileStore, max_bytes: int | None) -> None:
    @app.post("/v1/files", openapi_extra=_UPLOAD, **answers(FileObject))
    async def upload(request: Request) -> dict[str, Any]:
        boundary = boundary_of(request.headers.get("content-type", ""))
        length = request.headers.get("content-length", "")
        if max_bytes is not None and length.isdigit() and int(length) > max_bytes + FORM_BYTES:
            raise too_large(max_bytes)
        file_id = new_file_id()
        path = store.content(file_id)
        form = await receive(request.stream(), boundary, path, max_bytes)
        try:
            expires = _checked(form.fields)
            stored = await asyncio.to_thread(store.enter, file_id, form.filename or "", "batch", expires.seconds if expires else None)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return stored.to_openai()

    @app.get("/v1/files", **answers(Page[FileObject]))
    async def listing(
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> dict[str, Any]:
        found = await asyncio.to_thread(store.list)
        ordered = [one for one in (found if order == "desc" else found[::-1]) if purpose in (None, one.purpose)]
        some, has_more = page(ordered, after, limit)
        return list_object([one.to_openai() for one in some], has_more)

    @app.get("/v1/files/{file_id}", **answers(FileObject))
    async def show(file_id: str) -> dict[str, Any]:
        return (await asyncio.to_thread(store.get, file_id)).to_openai()

    @app.delete("/v1/files/{file_id}", **answers(FileDeleted))
    async def delete(file_id: str) -> dict[str, Any]:
        await asyncio.to_thread(store.delete, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @app.get("/v1/files/{file_id}/content", response_class=StreamingResponse, responses=_CONTENT)
    async def content(file_id: str) -> StreamingResponse:
        stored, file = await asyncio.to_thread(_open, store, file_id)
        headers = {"content-length": str(stored.bytes)}
        return StreamingResponse(_chunks(file), media_type="application/octet-stream", headers=headers)


def _checked(fields: dict[str, str]) -> ExpiresAfter | None:
    """The plain fields of an upload. Raises `ParameterError`."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise ParameterError("the form lacks the field purpose; send purpose=batch for the input of a batch", "purpose")
    if purpose != "batch":
        raise ParameterError(f"purpose {purpose[:40]!r} is not supported; use batch", "purpose")
    given = {name: fields[f"expires_after[{name}]"] for name in ("anchor", "seconds") if f"expires_after[{name}]" in fields}
    if not given:
        return None
    try:
        return ExpiresAfter.model_validate_strings(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ParameterError(f"expires_after.{first['loc'][0]}: {first['msg']}", "expires_after") from error


def _open(store: FileStore, file_id: str) -> tuple[StoredFile, BinaryIO]:
    """Open the file, so that it can be read to its end even if it is deleted meanwhile."""
    stored = store.get(file_id)
    try:
        return stored, store.content(file_id).open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(f"No such File object: {file_id}; it was deleted just now") from error


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _batches(app: FastAPI, controller: BatchController) -> None:
    @app.post("/v1/batches", **answers(BatchObject))
    async def create(wish: BatchWish) -> dict[str, Any]:
        return await controller.create(wish)

    @app.get("/v1/batches", **answers(Page[BatchObject]))
    async def listing(after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> dict[str, Any]:
        some, has_more = page(controller.records(), after, limit)
        return list_object([await controller.show(record.id) for record in some], has_more)

    @app.get("/v1/batches/{batch_id}", **answers(BatchObject))
    async def show(batch_id: str) -> dict[str, Any]:
        return await controller.show(batch_id)

    @app.post("/v1/batches/{batch_id}/cancel", **answers(BatchObject))
    async def cancel(batch_id: str) -> dict[str, Any]:
        return await controller.cancel(batch_id)
