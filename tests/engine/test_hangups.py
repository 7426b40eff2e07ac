"""A client that hangs up ends its request, whatever route it asked and whoever notices it first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from harvester.engine.frontend.hangups import HangUps, Message


class Client:
    """Sends one request to an application, and can hang up."""

    def __init__(self, path: str) -> None:
        headers = [(b"content-type", b"application/json")]
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "http_version": "1.1"}
        self.gone, self.sent = asyncio.Event(), list[Message]()
        self._bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive(self) -> Any:
        if self._bodies:
            return self._bodies.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


class Engine:
    """Counts the requests that it works on."""

    def __init__(self) -> None:
        self.running = 0
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def work(self) -> str:
        self.running += 1
        self.began.set()
        try:
            await self.may_end.wait()
        finally:
            self.running -= 1
        return "done"


def application(engine: Engine) -> FastAPI:
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation

    app = FastAPI()

    @app.post("/listens")
    @with_cancellation
    async def listens(body: dict[str, Any], raw_request: Request) -> str:
        return await engine.work()

    @app.post("/deaf")
    async def deaf(body: dict[str, Any]) -> str:
        return await engine.work()

    @app.post("/streams")
    async def streams(body: dict[str, Any]) -> StreamingResponse:
        async def stream() -> Any:
            yield await engine.work()

        return StreamingResponse(stream())

    return app


PATHS = ["/listens", "/deaf", "/streams"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cancelled", [False, True], ids=["told", "cancelled"])
async def test_a_request_whose_client_has_gone_ends(path: str, cancelled: bool) -> None:
    """``cancelled``: by Ray Serve, which hears of it first."""
    engine, client = Engine(), Client(path)
    call = asyncio.create_task(HangUps(application(engine))(client.scope, client.receive, client.send))
    await asyncio.wait_for(engine.began.wait(), 60)
    if cancelled:
        call.cancel()
    client.gone.set()
    await asyncio.wait((call,), timeout=60)
    assert call.done()
    assert engine.running == 0


async def test_a_cancel_alone_leaves_the_work_of_vllms_route_running() -> None:
    """Why there is a middleware."""
    engine, client = Engine(), Client("/listens")
    call = asyncio.create_task(application(engine)(client.scope, client.receive, client.send))
    await asyncio.wait_for(engine.began.wait(), 60)
    call.cancel()
    await asyncio.wait((call,), timeout=60)
    assert engine.running == 1
    engine.may_end.set()


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_stays_gets_its_answer_and_may_go_then(path: str) -> None:
    engine, client = Engine(), Client(path)
    engine.may_end.set()
    await HangUps(application(engine))(client.scope, client.receive, client.send)
    assert client.sent[0]["status"] == 200
    assert b"done" in b"".join(message.get("body", b"") for message in client.sent)
