"""The door of the chat application: who is let in, who is refused and how, and what is counted for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.access_config import TierConfig
from harvester.core import ServiceTier
from harvester.engine.frontend.door import IDENTITY, Door, prompt_tokens
from harvester.engine.frontend.engine import Sizes
from harvester.engine.frontend.hangups import Message
from harvester.engine.frontend.overload import Overload
from harvester.engine.shared.settings import Slo
from harvester.engine.shared.state import Count, Field, SharedState
from harvester.errors import OverloadError
from harvester.policy.admission.chat import CROWDED_S
from harvester.policy.model.load import StepLoad

TIERS = TierConfig(keys={"nightly": ServiceTier.FLEX})


class Replica:
    """A door before an application that keeps each request open until it is told; a step takes 10 ms a token."""

    def __init__(self) -> None:
        self.shared, self.now_s = SharedState.make(), 100.0
        self.overload = Overload(self.shared, Sizes(1000, 100, 16, 16, 1000), self.bound_s, lambda: self.now_s)
        self.reached = list[Any]()
        self.door = Door(self.application, self.overload, TIERS, lambda extra: Slo(2.0, 1.0))

    def bound_s(self, load: StepLoad) -> float:
        return 0.01 * load.tokens

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.reached.append(json.loads(message["body"]))
        with self.overload.running("only", self.reached[-1].get("n", 1)) as chat:
            self.overload.sent(chat, 10)

    async def ask(self, path: str = "/v1/chat/completions", key: str | None = None, bearer: str = "", **body: Any) -> list[Message]:
        headers = [(b"authorization", f"Bearer {bearer}".encode())] if bearer else []
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers}
        if key is not None:
            scope[IDENTITY] = SimpleNamespace(name=key, counted_as=key)
        left = [json.dumps(body).encode()]

        async def receive() -> Message:
            return {"type": "http.request", "body": left.pop(), "more_body": False}

        sent = list[Message]()

        async def send(message: Message) -> None:
            sent.append(message)

        await self.door(scope, receive, send)
        return sent


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    yield made
    made.shared.remove()


async def test_requests_are_let_in_until_their_first_token_would_come_too_late(replica: Replica) -> None:
    """A mean of 10 tokens takes 0.1 s. A burst is let in while slots (16) are free; later requests only if half of the 2 s is enough."""
    refused = [bool(await replica.ask(prompt="x")) for _ in range(20)]
    assert refused == [False] * 16 + [True] * 4
    assert (replica.overload.refused, len(replica.reached)) == (4, 16)


def test_the_expected_first_token_waits_for_offline_steps_and_for_those_before_it(replica: Replica) -> None:
    replica.overload.sent(1, 10)
    replica.overload.reset_awaiting()
    idle_s = replica.overload.expected_s()
    assert idle_s == pytest.approx(0.1)
    replica.overload.sent(3, 10)
    assert replica.overload.expected_s() == pytest.approx(0.4)
    replica.shared.planned(1, True, 2.0)
    replica.shared.began(1, 100.0 - 0.5, on_device=False)
    assert replica.overload.expected_s() == pytest.approx(0.4 + 1.5)


async def test_a_burst_that_finds_slots_is_refused_only_where_it_comes_far_too_late(replica: Replica) -> None:
    replica.overload.sent(13, 20)
    assert (await replica.ask(prompt="x"))[0]["status"] == 429, "2.6 s, of the 2 s that are promised"
    replica.overload.reset_awaiting()
    replica.overload.sent(10, 20)
    assert await replica.ask(prompt="x") == []


async def test_several_that_wait_for_seconds_are_no_burst(replica: Replica) -> None:
    replica.overload.sent(8, 15)
    assert await replica.ask(prompt="x") == [], "1.2 s in a burst"
    replica.now_s += CROWDED_S
    assert (await replica.ask(prompt="x"))[0]["status"] == 429, "the same, which is more than half of 2 s"


async def test_a_refusal_is_openais_and_says_when_to_come_back(replica: Replica) -> None:
    replica.overload.sent(500, 10)
    start, body = await replica.ask(prompt="x")
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (429, b"50")
    error = json.loads(body["body"])["error"]
    assert (error["code"], error["type"], error["param"]) == ("overloaded", "requests", None)
    assert error["message"] == "500 requests wait for their first token here; try again in 50 s"
    assert replica.shared[Field.YIELD_UNTIL_S] > replica.now_s


async def test_first_tokens_and_requests_that_end_without_one_make_room(replica: Replica) -> None:
    replica.overload.sent(500, 10)
    replica.shared.set(Count.FIRST_TOKENS, 400)
    replica.shared.set(Count.CHATS_GONE, 99)
    assert await replica.ask(prompt="x") == []
    replica.overload.sent(500, 10)
    replica.overload.reset_awaiting()
    assert await replica.ask(prompt="x") == []


@pytest.mark.parametrize(
    ("prompt", "tokens"), [([12345678] * 100, 100), ([[1, 2], [3]], 3), ("x" * 398, 101)], ids=["ids", "lists", "text"]
)
def test_a_prompt_of_token_ids_is_as_long_as_it_says(prompt: Any, tokens: int) -> None:
    assert prompt_tokens({"prompt": prompt}) == tokens


FILE = "A" * 4_000_000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{FILE}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}},
        {"type": "input_audio", "input_audio": {"data": FILE, "format": "wav"}},
    ],
    ids=["URL", "Anthropic's image", "audio"],
)
def test_a_file_in_a_message_is_no_text(part: dict[str, Any]) -> None:
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "data: what is this?"}, part]}]}
    assert 10 < prompt_tokens(asked) < 40


@pytest.mark.parametrize("given", [{"data": "x" * 400}, {"format": "list", "data": ["x" * 400]}], ids=["no file", "a list"])
def test_other_data_is_text(given: dict[str, Any]) -> None:
    assert prompt_tokens({"messages": [{"role": "user", "content": [given]}]}) >= 100


@pytest.mark.parametrize("fields", [{"prompt": "x" * 4_000_000}, {"prompt": "x", "padding": [" " * 4_000_000]}], ids=["prompt", "padding"])
async def test_a_chat_with_a_large_body_is_let_in_and_batch_work_goes_on(replica: Replica, fields: dict[str, Any]) -> None:
    """No prompt is longer than the model's context, and one prompt of 10 tokens waits: 0.1 s."""
    replica.overload.sent(1, 10)
    assert await replica.ask(**fields) == []
    assert replica.shared[Field.YIELD_UNTIL_S] <= replica.now_s + 2.0


async def test_batch_work_pauses_no_longer_than_chat_may_wait(replica: Replica) -> None:
    replica.overload.sent(500, 10)
    assert (await replica.ask(prompt="x"))[0]["status"] == 429
    assert replica.shared[Field.YIELD_UNTIL_S] == replica.now_s + 1.0, "half of 2 s, though 500 prompts take 50 s"


async def test_each_choice_counts_as_a_request_up_to_a_few(replica: Replica) -> None:
    refused = [bool(await replica.ask(prompt="x", n=4)) for _ in range(5)]
    assert refused == [False] * 4 + [True]
    replica.overload.reset_awaiting()
    assert await replica.ask(prompt="x", n=100) == []
    assert await replica.ask(prompt="x", n=12) == []
    assert await replica.ask(prompt="x", n=8) == [], "a burst of 12 choices that find slots"


async def test_one_request_for_a_hundred_choices_has_nobody_else_refused(replica: Replica) -> None:
    """16 slots, and KV for no more than those: its hundred answers would keep all others out until they end."""
    replica.overload = Overload(replica.shared, Sizes(1000, 100, 16, 16, 1000, kv_tokens=16 * 50), replica.bound_s, lambda: replica.now_s)
    replica.overload.answered(40)
    with replica.overload.admitted(None, 128, 10, 2.0), replica.overload.running("many", 128) as chat, ExitStack() as others:
        replica.overload.sent(chat, 10)
        for _ in range(12):
            replica.overload.reset_awaiting()
            others.enter_context(replica.overload.admitted(None, 1, 10, 2.0))
        with pytest.raises(OverloadError):
            others.enter_context(replica.overload.admitted(None, 1, 10, 2.0))
    assert chat == 4


def test_the_first_choices_of_a_request_are_chat_whatever_its_prompts_are(replica: Replica) -> None:
    overload = replica.overload
    with overload.admitted(None, 7, 10, 2.0):
        with overload.running("a", 3) as first, overload.running("b", 3) as second, overload.running("c", 1) as third:
            assert (first, second, third) == (3, 1, 0)
            assert [overload.sends("a") for _ in range(3)] == [True, True, True]
            assert [overload.sends("b") for _ in range(3)] == [True, False, False]
            assert not overload.sends("c")
            assert (overload.chat_of("b", 3), overload.chat_of("unknown", 3)) == (1, 3)
        with overload.running("d", 6) as later:
            assert later == 4, "those before have ended, as the beams of a search do"
    assert overload.sends("a"), "what comes by another way is chat"


def test_choices_that_are_no_chat_are_no_queue_without_a_bound(replica: Replica) -> None:
    with replica.overload.admitted(None, 250, 10, 2.0):
        replica.overload.sent(4, 10)
        replica.overload.reset_awaiting()
        with pytest.raises(OverloadError, match=r"^246 choices of other requests wait here; try again in [0-9]+ s$"):
            replica.overload.admitted(None, 30, 10, 2.0).__enter__()
        with replica.overload.admitted(None, 4, 10, 2.0):
            assert replica.overload.refused == 1
    with replica.overload.admitted(None, 300, 10, 2.0):
        assert replica.overload.refused == 1, "alone, it would wait for ever"


@pytest.mark.parametrize(
    "asked",
    [{"service_tier": "flex"}, {"bearer": "nightly"}, {"key": "nightly", "bearer": "hk_secret"}, {"path": "/tokenize"}],
    ids=["tier", "key", "key-by-name", "route"],
)
async def test_what_waits_for_chat_anyway_is_not_refused(replica: Replica, asked: dict[str, str]) -> None:
    replica.overload.sent(500, 10)
    assert await replica.ask(**asked) == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/invocations"])
async def test_where_a_tier_does_not_count_it_lets_nobody_past(replica: Replica, path: str) -> None:
    replica.overload.sent(500, 10)
    (refused, _) = await replica.ask(path=path, bearer="nightly", service_tier="flex")
    assert refused["status"] == 429


async def test_a_key_that_fills_the_time_leaves_half_of_it_to_others(replica: Replica) -> None:
    with ExitStack() as others:
        for key in [*["greedy"] * 13, "other"]:
            others.enter_context(replica.overload.admitted(key, 1, 10, 2.0))
        replica.overload.sent(0, 10)
        assert (await replica.ask(key="greedy", prompt="x"))[0]["status"] == 429
        assert await replica.ask(key="other", prompt="x") == []
        assert await replica.ask(key="new", prompt="x") == []
