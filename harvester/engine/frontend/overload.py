"""Overload control of a replica: asks the policy before it admits a chat request, and counts what the policy needs. All in the front end.

The engine core says how many first tokens it has made (shared state); how many requests it was sent is known here.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NoReturn

from harvester.engine.frontend.engine import Sizes
from harvester.engine.shared.state import Count, Field, SharedState
from harvester.errors import OverloadError
from harvester.policy.admission.chat import (
    TYPICAL_ANSWER,
    Asked,
    ChatAdmission,
    Crowd,
    chat_choices,
    in_its_slot_s,
    place_wait_s,
    places,
    typical_answer_s,
)
from harvester.policy.model.load import StepLoad
from harvester.policy.step.preempt import wait_of_steps_s

AWAITING_STEPS = 16  # full batches that may await a first token, whatever is predicted; the same bound holds for choices that are no chat
MIN_AWAITING = 256
TYPICAL_TOKENS = 256  # assumed length of a prompt, before one was seen
LONGEST_STEP_S = 10.0  # bounds the expected wait for steps in flight, one of unknown duration among them
RECENT = 32  # prompts, or answers, that a running mean is taken over


@dataclass(slots=True)
class Ticket:
    """An admitted request, counted in chat choices. Each prompt of the request claims some of them while it runs.

    ``at_door``: choices that are not sent to the engine yet. ``free``: choices that no running prompt has claimed.
    ``taken``: claimed choices, by the id of the prompt. ``unsent``: those of them that are not on their way to the engine.
    ``begun``: prompts that claimed a choice so far. ``ended``: prompts whose answer is complete.
    """

    at_door: int
    free: int
    taken: dict[str, int] = field(default_factory=dict)
    unsent: dict[str, int] = field(default_factory=dict)
    begun: int = 0
    ended: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether all its answers are complete: it was not refused by vLLM, and its client did not hang up."""
        return 0 < self.begun == self.ended


TICKET: ContextVar[Ticket | None] = ContextVar("TICKET", default=None)


class Overload:
    """Overload control of one replica; used from one event loop. ``bound_s``: P99 time of a step, 0 while it is unknown."""

    def __init__(
        self, shared: SharedState, sizes: Sizes, bound_s: Callable[[StepLoad], float], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._shared, self._sizes, self._bound_s, self._now_s = shared, sizes, bound_s, now_s
        self._max_waiting = max(MIN_AWAITING, AWAITING_STEPS * sizes.max_seqs)
        self._policy = ChatAdmission(self._max_waiting)
        self._at_door = 0  # chat choices of admitted requests that were not sent yet
        self._sent = 0  # online requests sent to the engine
        self._open: Counter[str | None] = Counter()  # open chat choices, by API key
        self._behind = 0  # open choices of chat requests that are offline work
        self._answer_s: float | None = None  # mean duration of the last answers, as if each had a slot of its own
        self._answer_tokens: float | None = None  # mean length of the last answers
        self._prompt_tokens = 0.0  # mean length of the last prompts
        self._prompts = 0
        self.refused = 0

    @contextmanager
    def admitted(self, key: str | None, requests: int, prompt_tokens: int, ttft_slo_s: float) -> Iterator[None]:
        """Admit a request for ``requests`` choices, which is open within the block. ``prompt_tokens``: estimated.

        Raises `OverloadError` if its first token would be late, or if too many choices that are no chat wait already.
        """
        chat = chat_choices(requests, self._sizes.max_seqs)
        behind = requests - chat
        self._enter(key, chat, behind, prompt_tokens, ttft_slo_s)
        ticket = Ticket(chat, chat)
        self._at_door += chat
        self._open[key] += chat
        self._behind += behind
        began_s = self._now_s()
        token = TICKET.set(ticket)
        try:
            yield
        finally:
            TICKET.reset(token)
            self._at_door -= ticket.at_door
            self._behind -= behind
            if not behind and ticket.is_answered:
                self._learn(self._now_s() - began_s)
            self._open[key] -= chat
            if not self._open[key]:
                del self._open[key]

    @contextmanager
    def running(self, name: str, choices: int) -> Iterator[int]:
        """A prompt with the id ``name`` runs within the block. Yields how many of its ``choices`` are chat: those its request has left."""
        ticket = TICKET.get()
        if ticket is None:
            yield choices
            return
        chat = ticket.taken[name] = ticket.unsent[name] = min(choices, ticket.free)
        ticket.free -= chat
        ticket.begun += chat > 0
        try:
            yield chat
        finally:
            ticket.free += ticket.taken.pop(name, 0)
            ticket.unsent.pop(name, None)

    def chat_of(self, name: str, choices: int) -> int:
        """How many of the ``choices`` of a prompt that runs are chat."""
        ticket = TICKET.get()
        return choices if ticket is None else ticket.taken.get(name, choices)

    def sends(self, name: str) -> bool:
        """A choice of a running prompt is about to be sent. Returns whether it is chat: the first ones are."""
        ticket = TICKET.get()
        if ticket is None or name not in ticket.unsent:
            return True
        is_chat = ticket.unsent[name] > 0
        ticket.unsent[name] -= is_chat
        return is_chat

    def sent(self, requests: int, prompt_tokens: int) -> None:
        """``requests`` online requests of one prompt were sent to the engine."""
        self._sent += requests
        self._prompts += 1
        self._prompt_tokens += (prompt_tokens - self._prompt_tokens) / min(RECENT, self._prompts)
        ticket = TICKET.get()
        if ticket is not None:
            gone = min(ticket.at_door, requests)
            ticket.at_door -= gone
            self._at_door -= gone
        self._look()

    def answered(self, tokens: int) -> None:
        """The answer to a prompt of an online request is complete, with ``tokens`` tokens a choice."""
        self._answer_tokens = _mean(self._answer_tokens, tokens)
        ticket = TICKET.get()
        if ticket is not None:
            ticket.ended += 1

    def expected_s(self) -> float:
        """Predicted seconds to first token of a typical chat that arrives now, behind the steps in flight and the waiting requests."""
        now_s, awaiting = self._now_s(), self._look()
        tokens = round(self._prompt_tokens) or TYPICAL_TOKENS
        prompt_s = self._bound_s(StepLoad.prefill(min(tokens, self._sizes.step_tokens)))
        crowd = self._crowd(awaiting, 1)
        steps_s = min(LONGEST_STEP_S, wait_of_steps_s(self._shared.in_flight(), now_s))
        return steps_s + self._policy.wait_s(Asked(1, math.inf, prompt_s), crowd, now_s)

    def reset_awaiting(self) -> None:
        """No online request is open: correct the count of requests that await a first token to none."""
        self._sent = self._over()

    def _enter(self, key: str | None, requests: int, behind: int, prompt_tokens: int, ttft_slo_s: float) -> None:
        now_s, awaiting = self._now_s(), self._look()
        if behind and self._behind and self._behind + behind > self._max_waiting:  # one request alone is bounded by its key's limit
            self._refuse(f"{self._behind} choices of other requests wait here", self._behind * self._end_s())
        prompt_tokens = min(prompt_tokens, self._sizes.context_tokens)
        prompt_s = self._bound_s(StepLoad.prefill(min(prompt_tokens, self._sizes.step_tokens)))
        asked = Asked(requests, ttft_slo_s, prompt_s, prompt_tokens / self._prompt_tokens if self._prompt_tokens else 1.0)
        crowd = self._crowd(awaiting, requests, self._open[key], len(self._open) + (key not in self._open))
        yield_s = self._policy.yield_s(asked, crowd, now_s)
        if yield_s:
            self._shared[Field.YIELD_UNTIL_S] = max(self._shared[Field.YIELD_UNTIL_S], now_s + yield_s)
        retry_s = self._policy.refused_s(asked, crowd, now_s)
        if retry_s is not None:
            self._refuse(self._reason(crowd), retry_s)

    def _reason(self, crowd: Crowd) -> str:
        """What a refused chat would have waited for."""
        places_taken = f"{crowd.open_requests} chats hold or await one of {self._places()} places"
        awaiting = f"{crowd.awaiting} requests wait for their first token here"
        if not crowd.place_wait_s:
            return awaiting
        return f"{awaiting}, and {places_taken}" if crowd.awaiting else f"{places_taken} here"

    def _refuse(self, reason: str, retry_s: float) -> NoReturn:
        self.refused += 1
        seconds = max(1, math.ceil(retry_s))
        raise OverloadError(f"{reason}; try again in {seconds} s", seconds)

    def _look(self) -> int:
        """How many await a first token, those that are on their way to the engine among them."""
        in_engine = max(0, self._sent - self._over())
        self._policy.look(int(self._shared.count(Count.FIRST_TOKENS)), in_engine, self._now_s())
        return self._at_door + in_engine

    def _crowd(self, awaiting: int, requests: int, of_key: int = 0, keys: int = 1) -> Crowd:
        """The load as the policy sees it, with ``requests`` more."""
        going = max(awaiting, self._open.total())
        return Crowd(
            awaiting,
            self._prompts_s(awaiting),
            self._open.total(),
            of_key,
            keys,
            slots_free=going + requests <= self._sizes.max_seqs,
            place_wait_s=place_wait_s(self._open.total(), requests, self._places(), self._end_s()),
        )

    def _places(self) -> int:
        """How many chats of mean length have a slot, or KV."""
        prompt_tokens = round(self._prompt_tokens) or TYPICAL_TOKENS
        answer_tokens = TYPICAL_ANSWER if self._answer_tokens is None else self._answer_tokens
        tokens = prompt_tokens + answer_tokens
        kv_tokens = self._shared.kv_tokens(tokens)  # of chats of this length; those of the longest requests hold fewer blocks a token
        return places(self._sizes.max_seqs, self._sizes.kv_tokens if kv_tokens is None else kv_tokens, tokens)

    def _end_s(self) -> float:
        """Mean seconds between the ends of two answers, while all slots are taken."""
        slots, prompt_tokens = self._sizes.max_seqs, round(self._prompt_tokens) or TYPICAL_TOKENS
        return (typical_answer_s(slots, prompt_tokens, self._bound_s) if self._answer_s is None else self._answer_s) / slots

    def _learn(self, seconds: float) -> None:
        """A complete answer took ``seconds`` from admission to its end."""
        self._answer_s = _mean(self._answer_s, in_its_slot_s(seconds, self._open.total(), self._sizes.max_seqs))

    def _over(self) -> int:
        """Online requests that have their first token, or never will."""
        return int(self._shared.count(Count.FIRST_TOKENS) + self._shared.count(Count.CHATS_GONE))

    def _prompts_s(self, awaiting: int) -> float:
        """Predicted seconds to prefill the prompts of the ``awaiting`` requests, in steps full of prompt tokens."""
        whole, rest = divmod(round(awaiting * self._prompt_tokens), self._sizes.step_tokens)
        step_s = self._bound_s(StepLoad.prefill(self._sizes.step_tokens)) if whole else 0.0
        return whole * step_s + (self._bound_s(StepLoad.prefill(rest)) if rest else 0.0)


def _mean(before: float | None, value: float) -> float:
    """The running mean over about the last `RECENT` values."""
    return value if before is None else before + (value - before) / RECENT
