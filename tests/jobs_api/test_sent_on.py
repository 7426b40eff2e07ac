"""Requests that name a further model: sent on to that model's application over real HTTP, as they came, and answered as it answers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from harvester.ports import free_port
from harvester.serve.http.forwarding import ModelForwarder

GONE_S = 30.0


class Further:
    """The other application, on a port of its own."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.was_left = threading.Event()
        app = FastAPI()

        @app.post("/models/small/v1/chat/completions")
        async def chat(request: Request) -> Any:
            self.asked.append((str(request.url.query), dict(request.headers), await request.body()))
            body = json.loads(self.asked[-1][2])
            if body.get("wrong"):
                return JSONResponse({"error": {"message": "wrong"}}, 400)
            return StreamingResponse(self._tokens(body.get("tokens", 2)), media_type="text/event-stream", headers={"x-small": "yes"})

        @app.get("/models/small/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "small"}]}

        @app.get("/models/small/v1/models/small")
        async def model() -> dict[str, Any]:
            return {"id": "small"}

        @app.get("/models/asleep/v1/{path:path}")
        async def asleep(path: str) -> JSONResponse:
            return JSONResponse({"error": {"message": "the model is not loaded while nobody uses it"}}, 503)

        self.port = free_port()
        self._server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", self.port, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def _tokens(self, count: int) -> AsyncIterator[str]:
        try:
            for number in range(count):
                yield f"data: {number}\n\n"
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.was_left.set()
            raise

    def __enter__(self) -> Further:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *given: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def further() -> Iterator[Further]:
    with Further() as running:
        yield running


@asynccontextmanager
async def door(further: Further, **places: str) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        return {"first": (await request.body()).decode()}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "big"}]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> JSONResponse:
        known = {"error": {"message": "the model does not exist; this server has: big"}}
        return JSONResponse({"id": name}) if name == "big" else JSONResponse(known, 404)

    given = {"small": f"http://127.0.0.1:{further.port}/models/small", **places}
    layer = ModelForwarder(app, given)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(layer), base_url="http://127.0.0.1") as http:
        yield http
    await layer.close()


async def test_a_request_goes_to_the_model_that_it_names_with_all_that_it_said(further: Further) -> None:
    body = {"model": "small", "messages": []}
    async with door(further) as http:
        answer = await http.post("/v1/chat/completions?a=b", json=body, headers={"authorization": "Bearer key", "x-request-id": "r1"})
    assert (answer.status_code, answer.text) == (200, "data: 0\n\ndata: 1\n\n")
    assert (answer.headers["x-small"], answer.headers["content-type"]) == ("yes", "text/event-stream; charset=utf-8")
    query, headers, sent = further.asked[-1]
    assert (query, headers["authorization"], headers["x-request-id"], json.loads(sent)) == ("a=b", "Bearer key", "r1", body)


@pytest.mark.parametrize("body", [{"model": "big"}, {"model": 3}, {}, {"model": "small "}], ids=repr)
async def test_what_names_no_further_model_reaches_the_first(further: Further, body: dict[str, Any]) -> None:
    async with door(further) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert json.loads(answer.json()["first"]) == body


@pytest.mark.parametrize("content", [b"", b"{", b'["model"]', b'{"model": "small"'], ids=repr)
async def test_what_is_no_object_reaches_the_first_as_it_is(further: Further, content: bytes) -> None:
    async with door(further) as http:
        answer = await http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert answer.json()["first"] == content.decode()


async def test_a_refusal_comes_back_as_the_other_application_said_it(further: Further) -> None:
    async with door(further) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "small", "wrong": True})
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "wrong"}})


async def test_all_models_are_listed_also_those_without_a_replica(further: Further) -> None:
    places = {"asleep": f"http://127.0.0.1:{further.port}/models/asleep", "lost": "http://127.0.0.1:9/models/lost"}
    async with door(further, **places) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["big", "small", "asleep", "lost"]
        assert all((one["object"], one["owned_by"]) == ("model", "vllm") for one in listed[2:])
        assert (await http.get("/v1/models/small")).json() == {"id": "small"}
        assert (await http.get("/v1/models/big")).json() == {"id": "big"}
        for name in places:
            answer = await http.get(f"/v1/models/{name}")
            assert (answer.status_code, answer.json()["id"]) == (200, name)


async def test_the_refusal_of_an_unknown_model_names_all_that_there_are(further: Further) -> None:
    async with door(further) as http:
        answer = await http.get("/v1/models/none")
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "the model does not exist; this server has: big, small")


async def test_a_model_without_replicas_is_503_in_openai_s_shape(further: Further) -> None:
    async with door(further, lost="http://127.0.0.1:9/models/lost") as http:
        answer = await http.post("/v1/chat/completions", json={"model": "lost"})
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].startswith("no replica of lost answers; it may be starting")


async def test_a_body_that_the_wall_has_not_bounded_is_not_read(further: Further) -> None:
    """Of a route whose application reads an upload in pieces, whatever kind of body the client says it is."""
    passed: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(True)

    async def never(*given: Any) -> Any:
        raise AssertionError("the body was read")

    scope = {"type": "http", "method": "POST", "path": "/v1/audio/transcriptions", "headers": [(b"content-type", b"application/json")]}
    layer = ModelForwarder(app, {"small": f"http://127.0.0.1:{further.port}/models/small"})
    await layer(scope, never, never)
    assert passed == [True]
    await layer.close()


async def test_a_client_that_hangs_up_ends_the_request_there(further: Further) -> None:
    further.was_left.clear()
    app, heard = ModelForwarder(FastAPI(), {"small": f"http://127.0.0.1:{further.port}/models/small"}), asyncio.Event()
    body = json.dumps({"model": "small", "tokens": 100_000}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await heard.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            heard.set()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    assert await asyncio.to_thread(further.was_left.wait, GONE_S)
    await app.close()
