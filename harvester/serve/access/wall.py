"""The wall: one middleware before every application that checks host, origin, route, key, role, quota and body, in this order."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, QueryParams
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from harvester.engine.frontend.spending import ASKER, SPENT, at_most
from harvester.errors import HarvesterError, KeyRefusedError, NotFoundError, ParameterError, RoleError
from harvester.logs import about
from harvester.serve.access.body import again, answering, bounded, check_encoding, paced, read
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.access.routes import OPEN, SHUT, Route, RouteTable
from harvester.serve.access.traced import Traced
from harvester.serve.access.who import remember
from harvester.serve.refusals import answer_of
from jobs.access.limits import check_class, check_json, check_own, check_size
from jobs.access.media import check_media

PRIORITY_HEADER = b"x-vllm-priority"  # vLLM's, which only harvester sets
REQUEST_ID = b"x-request-id"
_NAME = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_FURTHER = re.compile("0*[1-9][0-9]*")  # an offset behind the beginning
RETRY_AFTER_S = 1
ANONYMOUS = Identity(None, frozenset())  # the caller of an open route
_NO_KEYS = "this server needs an API key, and there is none; make one where it runs, with: harvester key add NAME"
_REFUSED = "this server needs an API key, but {what}; send one of its keys as Authorization: Bearer KEY (for commands: HARVESTER_API_KEY)"


def guard(app: FastAPI, table: RouteTable, gate: Gate) -> None:
    """Put the wall before ``app``. Call it last, so that it is outermost: middleware put before ``app`` earlier runs behind the wall."""
    if gate.origin.origins:
        put_before(app, lambda inner: _readable(inner, gate))
    put_before(app, lambda inner: Wall(inner, table, gate))
    tracer = gate.tracer
    if tracer is not None:
        put_before(app, lambda inner: Traced(inner, tracer))


def _readable(inner: ASGIApp, gate: Gate) -> ASGIApp:
    """``inner``, whose answers pages of the listed origins may read. It answers their preflights."""
    allowed, shown = sorted(gate.origin.origins), [REQUEST_ID.decode(), "retry-after"]
    return CORSMiddleware(inner, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"], expose_headers=shown)


def put_before(app: FastAPI, layer: Callable[[ASGIApp], ASGIApp]) -> None:
    """Wrap all of ``app`` in a middleware. FastAPI's own list is closed once its stack is built, which vLLM does early."""
    app.middleware_stack = layer(app.middleware_stack or app.build_middleware_stack())


class Wall:
    """ASGI middleware. Only routes of ``table`` pass. A body is read once route, key and quota are accepted. No refused request passes."""

    def __init__(self, app: ASGIApp, table: RouteTable, gate: Gate) -> None:
        self._app = app
        self._table = table
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "no such route"})
            return
        name = request_id(scope)
        send = _with_request_id(send, name)
        with ExitStack() as stack:
            stack.enter_context(about(request_id=name))
            try:
                receive, send = await self._passed(scope, receive, send, stack)
            except HarvesterError as error:
                await self._answer(scope, receive, send)(error)
                return
            await self._app(scope, receive, send)

    async def _passed(self, scope: Scope, receive: Receive, send: Send, stack: ExitStack) -> tuple[Receive, Send]:
        """``receive`` and ``send`` for the application. Raises the `HarvesterError` that says why the request is refused."""
        headers, method = Headers(scope=scope), scope["method"]
        self._gate.origin.check(method, headers)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if method == "OPTIONS" and self._table.has_path(path):
            return receive, send  # a browser's preflight; the application answers
        route = self._table.find(method, path)
        if route is None or route.needed == SHUT:
            raise NotFoundError(f"unknown route {method} {scope['path'][:80]}")
        who = ANONYMOUS if route.needed is OPEN else self._admit(route, headers)
        remember(scope, who, partial(self._is_known, who, route, headers))
        has_body = method not in ("GET", "HEAD")
        if has_body:
            check_encoding(headers)
            receive = paced(receive, self._gate.pace)
            if not route.is_upload:
                receive = bounded(receive, headers, who.limits.max_body_bytes)
        if route.needed is not OPEN:
            is_asked = route.is_upload or (method == "POST" and not route.is_reading)
            quotas, requests = self._gate.quotas, 0 if _goes_on(scope) else 1
            stack.enter_context(quotas.entered(who, requests) if is_asked else quotas.reading(who))
        if has_body and route.is_streamed:
            receive, send = answering(receive, send, self._answer(scope, receive, send))
        elif has_body:
            with self._gate.bodies.reading(receive, who.counted_as) as reading:
                body = await read(reading)
            check_json(body)
            receive = again(body, receive)
            if route.is_model_request:
                self._gate.quotas.recount(who, _checked(scope, body, who, self._gate))
        stack.enter_context(at_most(who.limits.max_tokens))
        if self._gate.meter is not None:
            stack.callback(SPENT.reset, SPENT.set(partial(self._gate.meter.spent, who)))
            stack.callback(ASKER.reset, ASKER.set(who.name))
        return receive, send

    def _answer(self, scope: Scope, receive: Receive, send: Send) -> Callable[[HarvesterError], Awaitable[None]]:
        async def answer(error: HarvesterError) -> None:
            if self._gate.meter is not None:
                self._gate.meter.refused(error)
            refusal = answer_of(error)
            is_readable = bool(self._gate.origin.origins) and scope["method"] != "OPTIONS"  # a refused preflight stays refused
            await (_readable(refusal, self._gate) if is_readable else refusal)(scope, receive, send)

        return answer

    def _admit(self, route: Route, headers: Headers) -> Identity:
        """The caller's identity. Raises `KeyRefusedError` or `RoleError`."""
        if not self._gate.keys.asks_for_key():
            return self._gate.keyless
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_given = scheme.lower() == "bearer"
        who = self._gate.keys.identify(key.strip()) if is_given else None
        if who is None and not self._gate.has_keys():
            raise KeyRefusedError(_NO_KEYS)
        if who is None:
            raise KeyRefusedError(_REFUSED.format(what="the one sent is unknown or expired" if is_given else "none was sent"))
        if not who.has_one_of(route.needed or ()):
            needed, own = (" or ".join(sorted(roles)) for roles in (route.needed or (), who.roles))
            raise RoleError(f"this needs a key of role {needed}, and key {who.name} has {own}; ask the administrator for one")
        return who

    def _is_known(self, who: Identity, route: Route, headers: Headers) -> bool:
        try:
            return route.needed is OPEN or self._admit(route, headers).name == who.name
        except HarvesterError:
            return False


def _goes_on(scope: Scope) -> bool:
    """Whether the request is a further piece of an upload, which was counted when it began."""
    return scope["method"] == "PUT" and _FURTHER.fullmatch(QueryParams(scope["query_string"]).get("offset", "")) is not None


def _checked(scope: Scope, body: bytes, who: Identity, gate: Gate) -> int:
    """Check a request to the model, and return how many requests to the engine it is. Raises `ParameterError` and `TooLargeError`."""
    if any(name == PRIORITY_HEADER for name, _ in scope["headers"]):
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != PRIORITY_HEADER]
    try:
        asked = json.loads(body)  # as the application will read it
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"the body is not JSON: {str(error)[:120]}; send an object as application/json") from error
    if not isinstance(asked, dict):
        raise ParameterError(f"the body is a JSON {type(asked).__name__}; send an object")
    check_own(asked)
    check_class(asked, gate.slo_classes)
    check_media(asked, gate.media_hosts)
    return check_size(asked, who.limits)


def request_id(scope: Scope) -> str:
    """The request's id: the client's if it is valid, else a new one, which the application finds in the same header."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    if _NAME.fullmatch(given):
        return str(given.decode())
    name = uuid.uuid4().hex
    scope["headers"] = [*(one for one in scope["headers"] if one[0] != REQUEST_ID), (REQUEST_ID, name.encode())]
    return name


def _with_request_id(send: Send, request_id: str) -> Send:
    """Adds the request's id to every answer, and `Retry-After` to every 429 and 503 that lacks it."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            if REQUEST_ID not in names:
                headers.append((REQUEST_ID, request_id.encode()))
            if message["status"] in (429, 503) and b"retry-after" not in names:
                headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
            message["headers"] = headers
        await send(message)

    return sending
