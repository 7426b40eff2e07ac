"""The tier of a chat request, and the priority that it carries as a header once harvester has settled it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import Request
from openai.types.chat import ChatCompletionChunk

from harvester.access_config import TierConfig
from harvester.core import ServiceTier
from harvester.engine.frontend.tiers import asked_tier, given_priority, marked, without_header
from harvester.errors import ParameterError

HEADER = "X-Vllm-Priority"


def request(**headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": given})


def test_the_header_says_the_priority_unless_it_is_no_number() -> None:
    assert given_priority(request(x_vllm_priority="7"), HEADER, 3) == 7
    assert given_priority(request(x_vllm_priority="soon"), HEADER, 3) == 3
    assert given_priority(request(), HEADER, 3) == 3
    assert given_priority(None, HEADER, 3) == 3


def test_vllm_sees_the_request_without_the_header_and_what_it_notes_is_kept() -> None:
    came = request(x_vllm_priority="7", authorization="Bearer k")
    seen = without_header(came, HEADER)
    assert seen is not None
    assert dict(seen.headers) == {"authorization": "Bearer k"}
    seen.state.request_metadata = "usage"
    assert came.state.request_metadata == "usage"
    assert came.headers[HEADER] == "7"


def test_a_request_without_the_header_is_handed_on_as_it_is() -> None:
    came = request(authorization="Bearer k")
    assert without_header(came, HEADER) is came
    assert without_header(None, HEADER) is None


TIERS = TierConfig(keys={"nightly": ServiceTier.FLEX, "vip": ServiceTier.PRIORITY})


@pytest.mark.parametrize(
    ("asked", "key", "tier"),
    [
        (None, None, None),
        (None, "unknown", None),
        ("auto", None, "default"),
        ("default", "nightly", "default"),
        ("flex", "vip", "flex"),
        (None, "nightly", "flex"),
        ("auto", "vip", "priority"),
    ],
    ids=str,
)
def test_a_tier_is_asked_for_or_that_of_the_key(asked: str | None, key: str | None, tier: str | None) -> None:
    assert asked_tier(TIERS, asked, key) == tier
    assert asked_tier(TIERS, asked, "hk_secret", key) == tier


@pytest.mark.parametrize("asked", ["turbo", "", 7, ["flex"]], ids=repr)
def test_an_unknown_tier_is_refused(asked: object) -> None:
    with pytest.raises(ParameterError, match="use one of: auto, default, priority, flex"):
        asked_tier(TIERS, asked, None)


async def told(*events: str) -> list[str]:
    async def stream() -> AsyncGenerator[str, None]:
        for event in events:
            yield event

    return [event async for event in marked(stream(), ServiceTier.FLEX)]


async def test_every_event_names_the_tier_and_is_else_as_it_was() -> None:
    events = [
        'data: {"id":"a","choices":[{"delta":{"content":"\\"tool_calls\\":[{\\"name\\":\\"b"}}]}\n\n',
        "data: [DONE]\n\n",
        'data: {"error":{}}\n\n',
    ]
    assert await told(*events) == [events[0].replace("{", '{"service_tier":"flex",', 1), *events[1:]]


async def test_a_streamed_call_begins_with_arguments_that_a_client_can_add_to() -> None:
    """As OpenAI's guide does: ``calls[index].function.arguments += call.function.arguments``."""
    functions = [{"name": "look"}, {"arguments": '{"where": '}, {"arguments": '"here"}'}, {"name": "go", "arguments": "{}"}]
    events = [
        {"id": "a", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]} for function in functions
    ]
    heard = [
        ChatCompletionChunk.model_validate_json(event[6:]) for event in await told(*(f"data: {dumped(event)}\n\n" for event in events))
    ]
    calls = [(chunk.choices[0].delta.tool_calls or [])[0] for chunk in heard]
    assert [call.function and call.function.arguments for call in calls] == ["", '{"where": ', '"here"}', "{}"]
    assert [chunk.service_tier for chunk in heard] == ["flex"] * 4


def dumped(event: dict[str, Any]) -> str:
    """As vLLM writes it."""
    return json.dumps(event | {"object": "chat.completion.chunk", "created": 1, "model": "tiny"}, separators=(",", ":"))
