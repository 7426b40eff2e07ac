"""Chats without a place: how long they wait is learnt from complete answers only, and a refusal names the places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from harvester.engine.frontend.engine import Sizes
from harvester.engine.frontend.overload import Overload
from harvester.engine.shared.state import SharedState
from harvester.errors import OverloadError
from harvester.policy.kv.groups import Group, KvGroups
from harvester.policy.model.load import StepLoad

KV_TOKENS = 1112  # for 20 chats of 10 tokens and answers of 40


class Replica:
    """16 slots, and KV for 20 chats; a step takes 10 ms a token."""

    def __init__(self) -> None:
        self.shared, self.now_s = SharedState.make(), 100.0
        sizes = Sizes(1000, 100, 16, 16, 1000, kv_tokens=KV_TOKENS)
        self.overload = Overload(self.shared, sizes, bound_s, lambda: self.now_s)

    def let_in(self, others: ExitStack) -> None:
        """Let a chat in that has its first token at once."""
        others.enter_context(self.overload.admitted(None, 1, 10, 2.0))
        self.overload.sent(1, 10)
        self.overload.reset_awaiting()

    def answer(self, seconds: float, prompts: int = 1) -> None:
        """One chat, from its admission to the end of its answers."""
        with self.overload.admitted(None, prompts, 10, 2.0):
            for number in range(prompts):
                with self.overload.running(str(number), 1):
                    self.overload.sent(1, 10)
                    self.now_s += seconds / prompts
                self.overload.answered(40)
        self.overload.reset_awaiting()


def bound_s(load: StepLoad) -> float:
    return 0.01 * load.tokens


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    yield made
    made.shared.remove()


@pytest.mark.parametrize("prompts", [1, 2], ids=["one prompt", "two prompts"])
def test_without_a_place_a_chat_waits_for_the_ends_of_others(replica: Replica, prompts: int) -> None:
    """Each answer took 8 s, so that one ends every half second."""
    for _ in range(8):
        replica.answer(8.0, prompts)
    with ExitStack() as others:
        for _ in range(22):
            replica.let_in(others)
        with pytest.raises(OverloadError) as refused:
            replica.let_in(others)
    assert refused.value.retry_after_s == 1, "half a second after 1 s, which is half of what is promised"
    assert refused.value.message == "22 chats hold or await one of 20 places here; try again in 1 s"
    assert replica.overload.refused == 1


@pytest.mark.parametrize("reached", ["no prompt", "its prompt", "one of its two answers"])
def test_a_request_that_ends_without_its_answer_says_nothing_of_how_long_one_takes(replica: Replica, reached: str) -> None:
    """A client that repeats an invalid body, or hangs up at once, does not let others in beside the places."""
    for _ in range(8):
        replica.answer(8.0)
    for _ in range(200):
        with suppress(GeneratorExit), replica.overload.admitted(None, 2, 10, 2.0):
            if reached == "one of its two answers":
                with replica.overload.running("first", 1):
                    replica.overload.sent(1, 10)
                replica.overload.answered(40)
            if reached != "no prompt":
                with replica.overload.running("second", 1):
                    replica.overload.sent(1, 10)
                    raise GeneratorExit
        replica.overload.reset_awaiting()
    with ExitStack() as others:
        for _ in range(22):
            replica.let_in(others)
        with pytest.raises(OverloadError, match=r"^22 chats hold or await one of 20 places here"):
            replica.let_in(others)


def test_places_are_counted_by_the_blocks_that_chats_of_their_length_hold(replica: Replica) -> None:
    """The longest requests would hold 20 times the tokens in these blocks, as where most layers have a window."""
    sizes = Sizes(1000, 100, 16, 16, 1000, kv_tokens=20 * KV_TOKENS)
    replica.overload = Overload(replica.shared, sizes, bound_s, lambda: replica.now_s)
    replica.shared.tell_kv(7 * KV_TOKENS, KvGroups([Group(1), *[Group(1, 63)] * 6]).held)
    for _ in range(8):
        replica.answer(8.0)
    with ExitStack() as others:
        for _ in range(22):
            replica.let_in(others)
        with pytest.raises(OverloadError, match=r"^22 chats hold or await one of 20 places here"):
            replica.let_in(others)


def test_a_refusal_names_the_first_tokens_and_the_places_that_are_awaited(replica: Replica) -> None:
    for _ in range(8):
        replica.answer(8.0)
    with ExitStack() as others:
        for _ in range(22):
            replica.let_in(others)
        replica.overload.sent(2, 10)
        told = r"^2 requests wait for their first token here, and 22 chats hold or await one of 20 places; try again in 1 s$"
        with pytest.raises(OverloadError, match=told):
            replica.let_in(others)
