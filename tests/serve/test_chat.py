"""The chat route, with the official client, unchanged."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from harvester.engine.embedded.conversation import GREETING, HOW_TO_CHOOSE, reply
from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages
from tests.real_server import RealServer

pytestmark = pytest.mark.serve
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


def running(server: RealServer) -> float:
    """Requests that the engine works on now, by its own metric."""
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
    )


def test_models_lists_the_model_served(client: OpenAI, model: str) -> None:
    assert [item.id for item in client.models.list()] == [model]


def test_streamed_and_whole_answers_are_the_same(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=12, temperature=0)
    pieces: Any = client.chat.completions.create(model=model, messages=HELLO, max_tokens=12, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("asked", "answer"),
    [("Good morning!", GREETING), ("How do I choose a real model?", HOW_TO_CHOOSE), ("Repeat: zworp und Quist", "zworp und Quist")],
)
def test_the_embedded_model_answers_by_its_rules(client: OpenAI, model: str, asked: str, answer: str) -> None:
    assert reply(asked) == answer
    said = client.chat.completions.create(model=model, messages=[{"role": "user", "content": asked}], temperature=0)
    assert (said.choices[0].message.content, said.choices[0].finish_reason) == (answer, "stop")


def test_the_last_of_several_turns_is_answered(client: OpenAI, model: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": GREETING}, {"role": "user", "content": "Count: one two three"}]
    said = client.chat.completions.create(model=model, messages=messages, temperature=0)
    assert said.choices[0].message.content == "3"


def test_completions_give_logprobs(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="The state of the union", max_tokens=4, logprobs=2, temperature=0)
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.token_logprobs or ()) == 4


def test_a_json_schema_shapes_the_answer(client: OpenAI, model: str) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer", "maximum": 99, "minimum": 10}}, "required": ["year"]}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "when", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=60, temperature=0, response_format=shape)
    assert isinstance(json.loads(answer.choices[0].message.content or "")["year"], int)


def test_a_named_tool_is_called(client: OpenAI, model: str) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    asked = build_messages(resolve_task("extract", options={"schema": parameters}), "text", {"text": "day: Friday\ncity: Oslo"})
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}}  # else any JSON would do
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(model=model, messages=asked, tools=[tool], tool_choice=choice, temperature=0)  # type: ignore[call-overload]
    calls = answer.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ["weather"]
    assert json.loads(calls[0].function.arguments)["city"] in ("Rome", "Oslo")


def test_a_client_that_hangs_up_ends_its_request_in_the_engine(server: RealServer, model: str) -> None:
    body = {"model": model, "messages": HELLO, "max_tokens": 7000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
        assert running(server) >= 1
    end_s = time.monotonic() + 60
    while running(server) > 0 and time.monotonic() < end_s:
        time.sleep(0.1)
    assert running(server) == 0


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_nine_clients_that_hang_up_while_they_wait_leave_nothing_behind(server: RealServer, model: str, stream: bool) -> None:
    """On every route, those that run and those that wait for a slot."""
    asked = {"model": model, "max_tokens": 7000, "ignore_eos": True, "stream": stream}
    host, port = server.url.removeprefix("http://").split(":")
    clients = [http.client.HTTPConnection(host, int(port), timeout=60) for _ in range(9)]
    for number, (client, (path, body)) in enumerate(zip(clients, cycle(ROUTES.items()), strict=False), start=1):
        client.request("POST", path, json.dumps({**asked, **body}), {"content-type": "application/json"})
        wait_for(server, number)  # one after the other, or a slow machine would refuse some
    for client in clients:
        client.close()
    wait_for(server, 0)
    assert running(server) == 0


def wait_for(server: RealServer, requests: int) -> None:
    end_s = time.monotonic() + 60
    while running(server) != requests:
        assert time.monotonic() < end_s, f"{running(server)} requests in the engine, not {requests}"
        time.sleep(0.1)


def harvested(server: RealServer) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("harvester_tokens_total{") and 'class="offline"' in line)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_of_many_choices_all_are_answered_and_a_few_are_chat(server: RealServer, client: OpenAI, model: str, stream: bool) -> None:
    """Of 12 choices with 20 tokens each, 4 are chat."""
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "n": 12, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
    before, ended = harvested(server), set[int]()
    if stream:
        for piece in client.chat.completions.create(**asked, stream=True):
            ended |= {choice.index for choice in piece.choices if choice.finish_reason == "length"}
    else:
        whole = client.chat.completions.create(**asked)
        ended = {choice.index for choice in whole.choices if choice.finish_reason == "length"}
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12 * 20
    assert ended == set(range(12))
    end_s = time.monotonic() + 60
    while harvested(server) - before < 8 * 20 and time.monotonic() < end_s:
        time.sleep(0.1)  # the counters are a step behind
    assert 8 * 20 <= harvested(server) - before < 12 * 20


def test_of_many_prompts_all_are_answered_and_a_few_are_chat(server: RealServer, client: OpenAI, model: str) -> None:
    before = harvested(server)
    answered = client.completions.create(model=model, prompt=["Hello"] * 9, max_tokens=20, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answered.choices] == list(range(9))
    assert {choice.finish_reason for choice in answered.choices} == {"length"}
    end_s = time.monotonic() + 60
    while harvested(server) - before < 5 * 20 and time.monotonic() < end_s:
        time.sleep(0.1)
    assert 5 * 20 <= harvested(server) - before < 9 * 20


def test_a_seed_with_a_prompt_of_several_chunks_leaves_the_engine_alive(client: OpenAI, model: str) -> None:
    long: list[Any] = [{"role": "user", "content": "the state of the union " * 200}]
    answers = [
        client.chat.completions.create(model=model, messages=long, max_tokens=4, seed=7, temperature=1.0).choices[0].message.content
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_an_unknown_model_is_refused_as_openai_does(client: OpenAI) -> None:
    with pytest.raises(Exception, match="does not exist"):
        client.chat.completions.create(model="nobody", messages=HELLO)


@pytest.mark.parametrize(
    ("role", "late_ns", "kind"),
    [
        ("engine core", 50_000, os.SCHED_OTHER),
        ("worker", 50_000, os.SCHED_OTHER),
        ("ledger", 50_000_000, os.SCHED_BATCH),
        ("jobs app", 50_000_000, os.SCHED_BATCH),
    ],
)
def test_only_the_engine_wakes_at_once_and_takes_a_core(server: RealServer, role: str, late_ns: int, kind: int) -> None:
    (process,) = server.find(role)
    assert int(Path(f"/proc/{process.pid}/timerslack_ns").read_text()) == late_ns
    assert {os.sched_getscheduler(thread.id) for thread in process.threads()} == {kind}
