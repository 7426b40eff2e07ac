"""What OpenAI's API has and vLLM's application lacks: a route for one model, and OpenAI's error body for routes the model does not have."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

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
    """Add both to vLLM's application, before it answers its first request."""

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> JSONResponse:
        listed = (await request.app.state.openai_serving_models.show_available_models()).model_dump()["data"]
        found = next((one for one in listed if one["id"] == name), None)
        if found is not None:
            return JSONResponse(found)
        known = ", ".join(one["id"] for one in listed)
        return _refused(404, f"the model {name[:120]!r} does not exist; this server has: {known}", "model", "model_not_found")

    app.router.default = _no_route  # too late for an error handler: vLLM's middleware stack is built


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
