"""What OpenAI's API has and vLLM's application lacks: a route for one model, and OpenAI's error bodies."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_ERROR_BYTES = 65_536  # of a body that is rewritten

# Last part of a route -> what it returns. vLLM has each of these routes only if the model can answer it.
_BY_KIND = {
    "embeddings": "embeddings",
    "score": "scores",
    "rerank": "ranks",
    "pooling": "poolings",
    "classify": "classes",
    "embed": "embeddings",
}


def complete(app: FastAPI) -> None:
    """Add them to vLLM's application, before it answers its first request."""

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> JSONResponse:
        listed = (await request.app.state.openai_serving_models.show_available_models()).model_dump()["data"]
        found = next((one for one in listed if one["id"] == name), None)
        if found is not None:
            return JSONResponse(found)
        known = ", ".join(one["id"] for one in listed)
        return _refused(404, f"the model {name[:120]!r} does not exist; this server has: {known}", "model", "model_not_found")

    app.router.default = _no_route  # too late for an error handler: vLLM's middleware stack is built
    app.middleware_stack = ErrorBodies(app.middleware_stack or app.build_middleware_stack())


def hide_paths(models: Any) -> None:
    """List each model with its name as ``root``, where vLLM shows the folder on this machine. ``models``: of vLLM's application."""
    show = models.show_available_models

    async def by_name() -> Any:
        listed = await show()
        for card in listed.data:
            card.root = card.id
        return listed

    models.show_available_models = by_name


class ErrorBodies:
    """ASGI middleware: gives the errors of vLLM the shape of OpenAI's, whose clients tell errors apart by it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None  # of an error whose body is not sent yet
        body = b""

        async def rewrite(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is not None and message["type"] == "http.response.body":
                body += message.get("body", b"")
                is_whole = not message.get("more_body", False)
                if not is_whole and len(body) <= MAX_ERROR_BYTES:
                    return
                first, start = start, None
                told = _rewritten(body) if is_whole else body
                if told != body:
                    others = [(name, value) for name, value in first["headers"] if name.lower() != b"content-length"]
                    first = {**first, "headers": [*others, (b"content-length", str(len(told)).encode())]}
                await send(first)
                message = {**message, "body": told}
            await send(message)

        await self._app(scope, receive, rewrite)


def openai_error(body: dict[str, Any]) -> dict[str, Any]:
    """An error body of vLLM (``code`` a status, ``type`` a class name) as OpenAI has it. Others are returned unchanged."""
    error = body.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return body
    status, message = error["code"], str(error.get("message", ""))
    code = None
    if "maximum context length" in message:
        code = "context_length_exceeded"
    elif status == 404 and "model" in message:
        code = "model_not_found"
    return {**body, "error": {**error, "type": "invalid_request_error" if status < 500 else "server_error", "code": code}}


def _rewritten(body: bytes) -> bytes:
    try:
        told = json.loads(body)
    except ValueError:
        return body
    if not isinstance(told, dict) or (changed := openai_error(told)) is told:
        return body
    return json.dumps(changed, separators=(",", ":")).encode()


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1008, "reason": "no such route"})
        return
    asked = f"{scope['method']} {scope['path'][:120]}"
    kind = _BY_KIND.get(scope["path"].rpartition("/")[2])
    told = f"unknown route {asked}"
    if kind is not None:
        told = f"{asked}: the model of this server gives no {kind}; ask a server with a model that does"
    await _refused(404, told, None, "not_found")(scope, receive, send)


def _refused(status: int, message: str, param: str | None, code: str | None) -> JSONResponse:
    error: dict[str, Any] = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status)
