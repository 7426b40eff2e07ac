"""OpenAI's Files and Batch API over HTTP. Knows the ledger only through the controller, so tests run it without Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from harvester.core import __version__
from harvester.errors import NotFoundError, ParameterError
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.access.routes import OPENAI_ROUTES
from harvester.serve.access.wall import guard
from harvester.serve.access.who import Who
from harvester.serve.http.contract import describe, refusal
from harvester.serve.http.disconnects import despite_disconnect
from harvester.serve.http.jobs.intake import Intake, Receipt
from harvester.serve.http.jobs.upload import Form, boundary_of, receive, too_large
from harvester.serve.openai.errors import WORDING
from harvester.serve.openai.objects import BatchObject, FileDeleted, FileObject, Page, answers
from harvester.serve.refusals import OpenAiRefusal, PlainJson, install
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore, StoredFile, new_file_id, no_such_file
from jobs.batches.page import list_object, page
from jobs.batches.record import BatchWish, ExpiresAfter
from jobs.batches.store import no_such_batch
from jobs.threads import with_storage

log = logging.getLogger("harvester.openai")

CHUNK_BYTES = 1 << 20
FORM_BYTES = 1 << 16  # allowance for the form around its file
_UPLOAD: dict[str, Any] = {  # what `receive` reads: if FastAPI knew it, it would read the whole form first
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
    gate: Gate | None = None,
    intake: Intake | None = None,
) -> OpenAiApp:
    """The application: ``/v1/files`` if ``files`` is given, ``/v1/batches`` if a ``controller`` is.

    ``max_bytes``: limit of an upload. ``gate``: whom it lets in; None: everybody. ``intake``: counts what keys store; None: these files.
    """
    prefix = "/v1/batches" if files is None else "/v1/files"
    app = OpenAiApp(
        title="OpenAI files and batches",
        version=__version__,
        default_response_class=PlainJson,
        redirect_slashes=False,
        openapi_url=f"{prefix}/openapi.json",  # below the prefix, because Serve routes nothing else here
        docs_url=None,
        redoc_url=None,
    )
    gate = gate or Gate()
    install(app, log, WORDING)
    describe(app, OpenAiRefusal, asks_for_key=gate.keys.asks_for_key)
    if files is not None:
        _files(app, files, intake or Intake(files), max_bytes)
    if controller is not None:
        _batches(app, controller)
    guard(app, OPENAI_ROUTES, gate)
    return app


def _files(app: FastAPI, store: FileStore, intake: Intake, max_bytes: int | None) -> None:
    @app.post("/v1/files", openapi_extra=_UPLOAD, **answers(FileObject))
    async def upload(request: Request, who: Who) -> dict[str, Any]:
        boundary = boundary_of(request.headers.get("content-type", ""))
        length = request.headers.get("content-length", "")
        file_id = new_file_id()
        async with intake.receiving(who, store.content(file_id)) as receipt:
            bounds = (max_bytes, who.limits.max_upload_bytes, receipt.left_bytes())
            bound = min((bound for bound in bounds if bound is not None), default=None)
            if bound is not None and length.isdigit() and int(length) > bound + FORM_BYTES:
                raise too_large(bound)
            form = await receive(request.stream(), boundary, receipt, bound)
            return await despite_disconnect(_entered(store, file_id, form, who, receipt))

    @app.get("/v1/files", **answers(Page[FileObject]))
    async def listing(
        who: Who,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> dict[str, Any]:
        found = [one for one in await with_storage(store.list, after) if who.owns(one.owner)]
        ordered = [one for one in (found if order == "desc" else found[::-1]) if purpose in (None, one.purpose)]
        some, has_more = page(ordered, after, limit)
        return list_object([one.to_openai() for one in some], has_more)

    @app.get("/v1/files/{file_id}", **answers(FileObject))
    async def show(file_id: str, who: Who) -> dict[str, Any]:
        return (await with_storage(_own, store, file_id, who)).to_openai()

    @app.delete("/v1/files/{file_id}", **answers(FileDeleted))
    async def delete(file_id: str, who: Who) -> dict[str, Any]:
        await with_storage(lambda: store.delete(_own(store, file_id, who).id))
        return {"id": file_id, "object": "file", "deleted": True}

    @app.get("/v1/files/{file_id}/content", response_class=StreamingResponse, responses=_CONTENT)
    async def content(file_id: str, who: Who) -> StreamingResponse:
        stored, file = await with_storage(_open, store, file_id, who)
        headers = {"content-length": str(stored.bytes)}
        return StreamingResponse(_chunks(file), media_type="application/octet-stream", headers=headers)


async def _entered(store: FileStore, file_id: str, form: Form, who: Identity, receipt: Receipt) -> dict[str, Any]:
    try:
        await receipt.check()
        expires = _checked(form.fields)
        seconds = expires.seconds if expires else None
        stored = await with_storage(store.enter, file_id, form.filename or "", "batch", seconds, who.name)
    except BaseException:
        store.content(file_id).unlink(missing_ok=True)
        raise
    return stored.to_openai()


def _checked(fields: dict[str, str]) -> ExpiresAfter | None:
    """Check the plain fields of an upload, and return when it expires. Raises `ParameterError`."""
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


def _own(store: FileStore, file_id: str, who: Identity) -> StoredFile:
    """The file, if it is the caller's. Raises `NotFoundError` alike for another's file and for an unknown one."""
    stored = store.get(file_id)
    if not who.owns(stored.owner):
        raise no_such_file(file_id)
    return stored


def _open(store: FileStore, file_id: str, who: Identity) -> tuple[StoredFile, BinaryIO]:
    """Open the file, so that it can be read to its end even if it is deleted meanwhile."""
    stored = _own(store, file_id, who)
    try:
        return stored, store.fetched(file_id).open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(f"No such File object: {file_id}; it was deleted just now") from error


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _batches(app: FastAPI, controller: BatchController) -> None:
    def own(batch_id: str, who: Identity) -> str:
        """The id, if the batch is the caller's. Raises `NotFoundError` alike for another's batch and for an unknown one."""
        if not who.owns(controller.owner(batch_id)):
            raise no_such_batch(batch_id)
        return batch_id

    @app.post("/v1/batches", **answers(BatchObject))
    async def create(wish: BatchWish, who: Who) -> dict[str, Any]:
        return await controller.create(wish, who.name, who.limits, who.owns)

    @app.get("/v1/batches", **answers(Page[BatchObject]))
    async def listing(who: Who, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> dict[str, Any]:
        some, has_more = page([record for record in controller.records() if who.owns(record.owner)], after, limit)
        return list_object([await controller.show(record.id) for record in some], has_more)

    @app.get("/v1/batches/{batch_id}", **answers(BatchObject))
    async def show(batch_id: str, who: Who) -> dict[str, Any]:
        return await controller.show(own(batch_id, who))

    @app.post("/v1/batches/{batch_id}/cancel", **answers(BatchObject))
    async def cancel(batch_id: str, who: Who) -> dict[str, Any]:
        return await despite_disconnect(controller.cancel(own(batch_id, who)))  # which holds the lock of all records
