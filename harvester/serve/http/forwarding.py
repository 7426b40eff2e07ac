"""Several models behind one port: a request that names a further model is forwarded to that model's application."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from harvester.config import ServeConfig
from harvester.errors import NoReplicaError
from harvester.serve.access.body import again
from harvester.serve.access.routes import CHAT_ROUTES, RouteTable
from harvester.serve.access.wall import put_before
from harvester.serve.reach import url_here
from harvester.serve.refusals import answer_of

CONNECT_S = 5.0
LIST_S = 2.0  # timeout for what another application says of its models
MODELS = "/v1/models"
# Headers of a connection, not of a message. `accept-encoding` stays, so that an answer is forwarded as it comes.
_OWN = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive"})


def prefix_of(model: str) -> str:
    """Route prefix of a further model's application."""
    return f"/models/{model}"


class ModelForwarder:
    """ASGI middleware between the wall and the first model's application. ``places``: URL of each further model's application, by name.

    ``table``: the wall's. The client's headers are forwarded with its key, because the other application has its own wall. Both count the
    request against the key's limits, each against its own part of them.
    """

    def __init__(self, app: ASGIApp, places: Mapping[str, str], table: RouteTable = CHAT_ROUTES) -> None:
        self._app = app
        self._table = table
        self._places = dict(places)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_S), limits=httpx.Limits(max_connections=None), trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, method = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"]
        if method == "GET" and path == MODELS:
            await self._list(scope, receive, send)
        elif method == "GET" and path.startswith(f"{MODELS}/"):
            await self._show(path.removeprefix(f"{MODELS}/"), path, scope, receive, send)
        elif method == "POST" and self._is_bounded(path) and "json" in Headers(scope=scope).get("content-type", ""):
            body, receive = await _read(receive)
            name = _model(body)
            if name in self._places:
                await self._send_on(name, path, body, scope, receive, send)
            else:
                await self._app(scope, again(body, receive), send)
        else:
            await self._app(scope, receive, send)

    def _is_bounded(self, path: str) -> bool:
        """Whether the wall has read the body, and so limited its size."""
        route = self._table.find("POST", path)
        return route is not None and not route.is_streamed

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The first model's list, and those of all others."""
        status, own = await _answer(self._app, scope, receive)
        if status != 200:
            await JSONResponse(own, status)(scope, receive, send)
            return
        told = await asyncio.gather(*(self._told(name, MODELS, {"data": [_card(name)]}, scope) for name in self._places))
        own["data"] = [*own.get("data", []), *(card for found in told for card in found["data"])]
        await JSONResponse(own)(scope, receive, send)

    async def _show(self, name: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if name in self._places:
            await JSONResponse(await self._told(name, path, _card(name), scope))(scope, receive, send)
            return
        status, own = await _answer(self._app, scope, receive)
        if status == 404 and isinstance(own.get("error"), dict):  # its message names its own models: add the others
            own["error"]["message"] = ", ".join([str(own["error"].get("message", "")), *self._places])
        await JSONResponse(own, status)(scope, receive, send)

    async def _told(self, name: str, path: str, otherwise: dict[str, Any], scope: Scope) -> dict[str, Any]:
        """What the model's application answers to a GET; ``otherwise`` where it gives none: the model sleeps, or is starting."""
        try:
            answer = await self._http.get(f"{self._places[name]}{path}", headers=_headers(scope), timeout=LIST_S)
            return dict(answer.raise_for_status().json())
        except httpx.HTTPError:
            return otherwise

    async def _send_on(self, name: str, path: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._pass(name, path, body, scope, receive, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering  # raises what it raised
        finally:
            for task in (answering, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, httpx.HTTPError):
                    await task

    async def _pass(self, name: str, path: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the other application's answer. If this is cancelled, the request ends there too."""
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        has_begun = False
        try:
            url = f"{self._places[name]}{path}{query}"
            async with self._http.stream(scope["method"], url, headers=_headers(scope), content=body) as answer:
                headers = [(key.lower(), value) for key, value in answer.headers.raw if key.lower() not in _OWN]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
                has_begun = True
                async for chunk in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.HTTPError as error:
            if has_begun:  # the answer was cut off there, so it is cut off here
                raise
            raised = NoReplicaError(f"no replica of {name} answers; it may be starting: try again in a moment")
            raised.__cause__ = error
            await answer_of(raised)(scope, receive, send)


def _headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name not in _OWN]


def _card(name: str) -> dict[str, Any]:
    """A model in OpenAI's list, as far as its name tells."""
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}


def _model(body: bytes) -> str | None:
    """The model that a JSON body names."""
    if b'"model"' not in body:
        return None
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the application refuses it
    name = asked.get("model") if isinstance(asked, dict) else None
    return name if isinstance(name, str) else None


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The whole body, whose size the wall has limited."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts), receive
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts), receive


async def _gone(receive: Receive) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
    """Status and JSON object that ``app`` answers with."""
    status = 500
    parts: list[bytes] = []

    async def keep(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, keep)
    return status, dict(json.loads(b"".join(parts)))


def add_forwarding(app: FastAPI, config: ServeConfig, table: RouteTable) -> None:
    """Put `ModelForwarder` before the first model's ``app``, if there are further models. Call it before `wall.guard`."""
    if config.models:
        here = url_here(config.host, config.port)
        places = {name: f"{here}{prefix_of(name)}" for name in config.models}
        put_before(app, lambda inner: ModelForwarder(inner, places, table))
