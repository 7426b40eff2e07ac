"""What OpenAI's API has beside chat: a model by name, and errors in OpenAI's shape where a model cannot do what is asked."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from harvester.serve.access.gate import Gate
from harvester.serve.access.routes import CHAT_ROUTES
from harvester.serve.access.wall import guard

pytestmark = pytest.mark.engine
NAMES = ("tiny", "org/adapter")


class Models:
    async def show_available_models(self) -> Any:
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "vllm"} for name in NAMES]
        return SimpleNamespace(model_dump=lambda: {"object": "list", "data": data})


@pytest.fixture(scope="module")
def app() -> FastAPI:
    """vLLM's application of a model that generates, behind the wall."""
    with warnings.catch_warnings():  # what vLLM and torch warn of on import is not ours to mend
        warnings.simplefilter("ignore")
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        from harvester.engine.vllm.frontend.complete import complete

        made: FastAPI = build_app(make_arg_parser(FlexibleArgumentParser()).parse_args([]), ("generate",))
    complete(made)
    made.state.openai_serving_models = Models()
    guard(made, CHAT_ROUTES, Gate(slo_classes=frozenset({"voice", "chat"})))
    return made


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000/v1") as made:
        yield made


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which has OpenAI's shape."""
    assert answer.status_code == status, answer.text
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return dict(error)


@pytest.mark.parametrize("name", NAMES)
async def test_a_model_is_retrieved_by_its_name(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/models/{name}")).json()["id"] == name


async def test_a_model_that_is_not_there_is_not_found_as_openai_says_it(client: httpx.AsyncClient) -> None:
    error = refused(await client.get("/models/gpt-4"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "this server has: tiny, org/adapter" in error["message"]


@pytest.mark.parametrize("path", ["/embeddings", "/score", "/rerank"])
async def test_what_a_model_that_generates_does_not_give_is_refused_as_openai_refuses(client: httpx.AsyncClient, path: str) -> None:
    error = refused(await client.post(path, json={"model": "tiny", "input": "a"}), 404)
    assert "the model of this server gives no " in error["message"]


@pytest.mark.parametrize("named", ["vioce", 7, ["voice"]], ids=str)
async def test_an_slo_class_that_the_configuration_lacks_is_refused_with_those_it_has(client: httpx.AsyncClient, named: object) -> None:
    asked = {"model": "tiny", "messages": [], "vllm_xargs": {"slo_class": named}}
    error = refused(await client.post("/chat/completions", json=asked), 400)
    assert error["param"] == "vllm_xargs.slo_class"
    assert f"unknown slo_class {str(named)!r}; use one of: chat, voice" in error["message"]


async def test_a_request_that_vllm_refuses_is_refused_as_openai_refuses(client: httpx.AsyncClient) -> None:
    error = refused(await client.post("/chat/completions", json={"model": "tiny"}), 400)
    assert error["code"] is None
    assert "messages" in f"{error['param']} {error['message']}"


@pytest.mark.parametrize(
    ("status", "message", "kind", "code"),
    [
        (400, "This model's maximum context length is 64 tokens.", "invalid_request_error", "context_length_exceeded"),
        (404, "The model `big` does not exist.", "invalid_request_error", "model_not_found"),
        (400, "n must be 1", "invalid_request_error", None),
        (500, "the engine failed", "server_error", None),
    ],
)
async def test_the_errors_of_vllm_have_the_types_and_codes_of_openai(status: int, message: str, kind: str, code: str | None) -> None:
    from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

    from harvester.engine.vllm.frontend.complete import complete

    app = FastAPI()

    @app.get("/asked")
    async def asked() -> JSONResponse:
        told = ErrorResponse(error=ErrorInfo(message=message, type="AClass", code=status))
        return JSONResponse(told.model_dump(), status)

    complete(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        answer = await http.get("/asked")
    assert answer.status_code == status
    assert answer.json() == {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(("body", "kind"), [(b'{"code": 3}', "application/json"), (b"x" * 200_000, "text/plain")], ids=["json", "long"])
async def test_what_is_no_error_of_vllm_passes_unchanged(body: bytes, kind: str) -> None:
    from harvester.engine.vllm.frontend.complete import complete

    app = FastAPI()

    @app.get("/asked")
    async def asked() -> StreamingResponse:
        return StreamingResponse(iter([body[:100], body[100:]]), 418, {"x-kept": "1"}, kind)

    complete(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        answer = await http.get("/asked")
    assert (answer.status_code, answer.headers["x-kept"], answer.content) == (418, "1", body)
