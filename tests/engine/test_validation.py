"""What vLLM's request models make of a request with many wrong items: one error, however many there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from harvester.engine.vllm.frontend.validation import stop_at_first_error

pytestmark = pytest.mark.engine

MODELS: dict[str, type[BaseModel]] = {"/v1/chat/completions": ChatCompletionRequest, "/v1/responses": ResponsesRequest}
HI = {"role": "user", "content": "hi"}
WRONG: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
    ("/v1/responses", lambda count: {"input": [{}] * count}),
    ("/v1/responses", lambda count: {"input": [{"role": "user", "content": [{}] * count}]}),
    ("/v1/responses", lambda count: {"input": [HI] * count + [7] * count}),
    ("/v1/chat/completions", lambda count: {"messages": [{}] * count}),
    ("/v1/chat/completions", lambda count: {"messages": [0] * count}),
    ("/v1/chat/completions", lambda count: {"messages": [HI], "tools": [{}] * count}),
]
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stop": ["a", "b"]}),
]


def app_of(models: dict[str, type[BaseModel]]) -> FastAPI:
    app = FastAPI()
    for path, model in models.items():

        async def answer(request: Any) -> dict[str, Any]:
            return dict(request.model_dump(mode="json", exclude_unset=True))

        answer.__annotations__["request"] = model
        app.post(path)(answer)
    return app


@pytest.fixture(scope="module")
def stock() -> list[Any]:
    """Right requests as they are read before the models are changed."""
    client = TestClient(app_of(MODELS))
    return [client.post(path, json=body).json() for path, body in RIGHT]


@pytest.fixture(scope="module")
def client(stock: list[Any]) -> TestClient:
    app = app_of(MODELS)
    stop_at_first_error(app)
    return TestClient(app)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_one_wrong_item_is_described_and_no_other(client: TestClient, number: int) -> None:
    path, body = WRONG[number]
    one, many = client.post(path, json=body(1)), client.post(path, json=body(200))
    assert (one.status_code, many.status_code) == (422, 422)
    assert len(many.json()["detail"]) == len(one.json()["detail"])


def test_right_requests_are_read_as_before(client: TestClient, stock: list[Any]) -> None:
    assert [client.post(path, json=body).json() for path, body in RIGHT] == stock


def test_a_row_which_needs_no_route_is_validated_alike(client: TestClient) -> None:
    def errors(count: int) -> int:
        with pytest.raises(ValidationError) as refused:
            ChatCompletionRequest.model_validate({"messages": [{}] * count})
        return refused.value.error_count()

    assert errors(200) == errors(1)
