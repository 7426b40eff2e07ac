"""Bodies that come slowly, are compressed, or are far larger once they are read: real sockets where time is the matter."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from starlette.types import Message

from harvester.errors import SlowBodyError
from harvester.serve.access.body import Pace, paced
from harvester.serve.access.gate import Gate
from harvester.serve.access.routes import CHAT, RouteTable
from harvester.serve.access.wall import guard
from jobs.access.limits import MOST_IN_JSON

TABLE = RouteTable({"POST /say": CHAT, "POST /upload": CHAT, "POST /ask": CHAT}, model_requests=("POST /ask",), streamed=("POST /upload",))
PATIENCE_S = 20.0
QUICK = Pace(grace_s=0.3, bytes_per_s=1 << 20)


def application(pace: Pace) -> FastAPI:
    app = FastAPI()

    @app.post("/{path}")
    async def take(request: Request, path: str) -> dict[str, int]:
        return {"bytes": sum([len(part) async for part in request.stream()])}

    guard(app, TABLE, Gate(pace=pace))
    return app


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a real server that is as impatient as `QUICK`."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(QUICK), log_level="critical"))
    serving = asyncio.create_task(server.serve([listener]))  # the listener takes connections from now on
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


async def drip(port: int, path: str, headers: str) -> tuple[str, dict[str, str], dict[str, object]]:
    """Send a byte every 20 ms for as long as the server listens; its status line, headers and body.

    A byte that arrives after the server has closed makes the system throw the answer away, as it may to any client: then it is asked again.
    """
    text = b""
    for _ in range(5):
        with suppress(ConnectionError):
            text = await dripped(port, path, headers)
        if text:
            break
    head, _, body = text.decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return status, dict(line.lower().split(": ", 1) for line in lines), json.loads(body)


async def dripped(port: int, path: str, headers: str) -> bytes:
    """The answer as it came. Raises ConnectionError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n\r\n".encode())
    answer = asyncio.create_task(reader.read())
    while not answer.done():
        try:
            writer.write(b"1\r\n \r\n" if "chunked" in headers else b" ")
            await writer.drain()
        except OSError:
            break
        await asyncio.wait([answer], timeout=0.02)
    writer.close()
    return await answer


@pytest.mark.parametrize("path", ["/say", "/ask", "/upload"])
@pytest.mark.parametrize("headers", ["Content-Length: 1000000", "Transfer-Encoding: chunked"], ids=["length", "chunked"])
async def test_a_body_that_drips_ends_with_408(port: int, path: str, headers: str) -> None:
    status, answered, body = await drip(port, path, headers)
    assert " 408 " in status
    assert answered["connection"] == "close"
    error = body["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "request_timeout"


async def test_a_large_body_may_take_its_time(port: int) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield bytes(1 << 19)
            await asyncio.sleep(0.1)

    async with httpx.AsyncClient(timeout=None) as http:
        answer = await http.post(f"http://127.0.0.1:{port}/upload", content=parts())
    assert answer.json() == {"bytes": 10 << 19}


async def test_what_came_fast_does_not_let_a_client_stand_still_for_long() -> None:
    async def receive() -> Message:
        if came:
            await asyncio.Event().wait()
        came.append(1)
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    came: list[int] = []
    next_part = paced(receive, Pace(grace_s=PATIENCE_S, bytes_per_s=1, max_left_s=0.1))
    await next_part()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(SlowBodyError):
            await next_part()


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(application(Pace())), base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", ["/say", "/ask", "/upload"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
async def test_a_compressed_body_is_refused_and_not_opened(path: str, encoding: str) -> None:
    async with client() as http:
        answer = await http.post(path, content=gzip.compress(bytes(1 << 20)), headers={"content-encoding": encoding})
    assert answer.status_code == 400
    assert "does not decode" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("what", "pieces"),
    [("brackets", b"{},"), ("colons", b'"":0,'), ("commas", b"0,"), ("digits", b"9" * 4000 + b",")],
    ids=["gigabytes", "names", "values", "numbers"],
)
async def test_json_that_would_take_gigabytes_or_seconds_is_refused_before_it_is_read(what: str, pieces: bytes) -> None:
    letters, most, _ = MOST_IN_JSON[what]
    too_many = pieces * (most // sum(pieces.count(letter) for letter in letters) + 1)
    async with client() as http:
        answer = await http.post("/ask", content=too_many)
    assert answer.status_code == 413
    assert what in answer.json()["error"]["message"]
