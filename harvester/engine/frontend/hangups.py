"""Aborts the request of a client that hangs up: streamed or not, also while it waits and during prefill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

GRACE_S = 0.2  # for a route to end by itself: vLLM's routes then cancel what they started, which they do not when cancelled from outside


class HangUps:
    """ASGI middleware around ``app``. Comes before any middleware that starts tasks.

    Ray Serve cancels the call of a client that has gone. vLLM's routes wait for a task of their own, which such a cancel leaves running to
    its end. So the call first receives ASGI's ``http.disconnect``, and is cancelled only if it does not end within `GRACE_S`.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Call(self._app, receive, send).run(scope)
        else:
            await self._app(scope, receive, send)


class _Call:
    """One request."""

    def __init__(self, app: App, receive: Receive, send: Send) -> None:
        self._app, self._outer_receive, self._outer_send = app, receive, send
        self._read = asyncio.Event()  # the whole body was read
        self._gone = asyncio.Event()
        self._is_answered = False

    async def run(self, scope: Any) -> None:
        call = asyncio.ensure_future(self._app(scope, self._receive, self._send))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((call, watch), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the server saw the client go first
            await self._end(call)
            raise
        finally:
            watch.cancel()
        if not call.done() and not self._is_answered:
            await self._end(call)
        if not self._gone.is_set():
            await call

    async def _end(self, call: asyncio.Future[None]) -> None:
        """End the call of a client that has gone. What the call raises now is dropped."""
        self._gone.set()
        await asyncio.wait((call,), timeout=GRACE_S)
        if not call.done():
            call.cancel()
            await asyncio.wait((call,), timeout=GRACE_S)
        if call.done() and not call.cancelled():
            call.exception()

    async def _watch(self) -> None:
        """Ends when the client has hung up."""
        await self._read.wait()
        while (await self._outer_receive())["type"] != "http.disconnect":
            pass
        if not self._is_answered:
            self._gone.set()

    async def _receive(self) -> Message:
        if self._read.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._outer_receive()
        if message["type"] == "http.disconnect":
            self._gone.set()
        if not message.get("more_body", False):
            self._read.set()
        return message

    async def _send(self, message: Message) -> None:
        self._is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._outer_send(message)
