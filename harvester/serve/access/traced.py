"""A span for each request, from its arrival to the last byte of its answer; the application's own spans are its children."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

PARENT, STATE = b"traceparent", b"tracestate"


class Traced:
    """The outermost ASGI middleware. The application receives our `traceparent` (W3C) in place of the client's.

    ``OPTIONS`` requests get no span: with them HAProxy checks our health every second.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app, self._tracer, self._format = app, tracer, TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        parent = self._format.extract(dict(Headers(scope=scope)))
        about = {"http.request.method": scope["method"], "url.path": scope["path"]}
        with self._tracer.start_as_current_span(
            f"{scope['method']} {scope['path']}", context=parent, kind=SpanKind.SERVER, attributes=about
        ) as span:
            carrier: dict[str, str] = {}
            self._format.inject(carrier, set_span_in_context(span))
            ours = [(name.encode(), value.encode()) for name, value in carrier.items()]
            scope = {**scope, "headers": [*(one for one in scope["headers"] if one[0] not in (PARENT, STATE)), *ours]}

            async def telling(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            await self._app(scope, receive, telling)
