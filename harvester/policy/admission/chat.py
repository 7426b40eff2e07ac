"""Admission of chat: a request is let in if its first token is expected in time. Waiting for one that comes too late helps nobody.

While slots are free, a first token waits for the prompts before it, and the latency model predicts their time. Otherwise the wait is the
number of requests without a first token, over the rate of first tokens while several wait for theirs. That rate reflects slots, KV and
batch work, which a model of prompts does not.

An SLO of a few prompts' time cannot be kept in any burst, and refusing does not help. A burst drains by itself, and a late first token is
better than none. With such an SLO a chat is let in as if it had no SLO. An overload begins with the first request that is refused even so.
From then on the bound is a small multiple of the prompt's own time. The overload ends once the replica could have answered the refused
requests as well: a burst ends, an overload refuses more than that.

With any other SLO the bound is somewhat above the SLO while slots are free. Without slots, or once several requests have waited for seconds
on end, it is a share of the SLO, so that ninety-nine of a hundred first tokens keep the SLO.

Without a free slot a first token still comes quickly, in slots of others, until no KV is left: the next request waits for a whole answer.
A place is a slot, or KV. A chat is let in only if enough answers are expected to end in time: one for each chat without a place.

One request may ask for a hundred choices. A few of them are chat; the others are offline work, and nobody waits for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from harvester.policy.model.load import StepLoad

BACKLOG = 4  # requests that wait for a first token: with fewer a step has room for more, and their rate says little
WINDOW_S = 3.0  # of backlog, over which the rate is taken
MAX_AGE_S = 10.0  # after so long without a backlog the rate is forgotten
CROWDED_S = 3.0  # a backlog that lasts so long is no burst into free slots
SHARE = 0.5  # maximum expected TTFT, as a share of the allowed one: one of a hundred takes twice the expected or more
BURST_SHARE, BURST_S = 1.25, 1.0  # the same in a burst, and an expected TTFT that is never too long then
OWN_CHOICES, OWN_SLOTS = 4, 8  # choices of one request that are chat: so many, or slots / OWN_SLOTS if more
OWN_SHARE = 0.5  # share of the bound that every key may fill; the rest is for keys with no more than their fair part
UNPROMISED_S, UNPROMISED_ALONE = 10.0, 4.0  # without an SLO, the allowed TTFT: the first plus so many times its prompt's time
TIGHT_PROMPTS = 16.0  # an SLO below so many times its prompt's own time cannot be kept by refusing
OVERLOAD_PROMPTS = 4.0  # with such an SLO, the least bound in an overload, as a multiple of the prompt's own time
MIN_TOKEN_S = 1e-3  # seconds per first token; before the latency model is ready, a prompt is thought to take none
TYPICAL_ANSWER = 128  # tokens
KV_SHARE = 0.9  # share of all KV that chats may hold: their lengths differ
YIELD_SHARE = 0.25  # share of the bound: with a longer wait, batch work pauses
MAX_LENGTH = 8.0  # times the mean prompt: how much longer than the queue a long one waits, since its length is estimated from characters


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request that asks to be let in. ``requests``: its choices that are chat. ``prompt_s``: time of its prompt alone.

    ``length``: of its prompt, relative to the mean of earlier ones. A long one waits longer: orders by prompt length let others pass.
    """

    requests: int
    ttft_slo_s: float
    prompt_s: float
    length: float = 1.0

    @property
    def is_tight(self) -> bool:
        """Whether its SLO cannot be kept beside even a few other requests."""
        return self.ttft_slo_s < TIGHT_PROMPTS * self.prompt_s

    @property
    def is_promised(self) -> bool:
        """Whether it has a TTFT SLO that refusing can keep."""
        return self.ttft_slo_s < math.inf and not self.is_tight

    def limit_s(self, *, is_crowded: bool, is_overload: bool) -> float:
        """The maximum expected TTFT with which it is let in."""
        if self.is_tight and is_overload:
            return max(SHARE * self.ttft_slo_s, OVERLOAD_PROMPTS * self.prompt_s)
        promised_s = self.ttft_slo_s if self.is_promised else UNPROMISED_S + UNPROMISED_ALONE * self.prompt_s
        return SHARE * promised_s if is_crowded else max(BURST_S, BURST_SHARE * promised_s)


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests that are there already. ``awaiting``: those without a first token; ``prompts_s``: predicted time of their prompts.

    ``open_requests``: those with an unfinished answer. ``of_key``: how many of them are of the asking key; ``keys``: keys that have any.
    ``slots_free``: there is a slot for each of them and for the new one. ``place_wait_s``: seconds until one answer has ended for each
    request without a place.
    """

    awaiting: int
    prompts_s: float
    open_requests: int = 0
    of_key: int = 0
    keys: int = 1
    slots_free: bool = False
    place_wait_s: float = 0.0


def chat_choices(choices: int, slots: int) -> int:
    """How many of the ``choices`` of one request are chat. The others are offline work: chat of others goes before them."""
    return min(choices, slots, max(OWN_CHOICES, slots // OWN_SLOTS))


def places(slots: int, kv_tokens: float, request_tokens: float) -> int:
    """How many chats have a slot, or KV for prompt and answer (``request_tokens`` each). Any other waits for an answer to end."""
    return max(slots, int(KV_SHARE * kv_tokens / max(1.0, request_tokens)))


def place_wait_s(open_requests: int, requests: int, held: int, end_s: float) -> float:
    """Seconds until all, with ``requests`` more, have one of the ``held`` places, if an answer ends every ``end_s``."""
    return max(0, open_requests + requests - held) * end_s


def in_its_slot_s(seconds: float, open_requests: int, slots: int) -> float:
    """Time in a slot of its own, of an answer that took ``seconds`` beside ``open_requests``."""
    return seconds * min(1.0, slots / max(1, open_requests))


def typical_answer_s(slots: int, prompt_tokens: int, bound_s: Callable[[StepLoad], float]) -> float:
    """Assumed time of an answer while all slots are taken, used until one has ended. ``bound_s``: P99 of a step."""
    context = prompt_tokens + TYPICAL_ANSWER // 2
    return TYPICAL_ANSWER * bound_s(StepLoad(0, 0.0, slots, slots * context, slots))


class FirstTokenRate:
    """The rate of first tokens, measured while at least `BACKLOG` requests wait for theirs."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, int]] = deque()
        self._seconds, self._tokens = 0.0, 0  # of all spans
        self._last: tuple[float, int] | None = None  # time and total of the last look, where there was a backlog
        self._seen_s = 0.0  # end of the last span
        self._since_s: float | None = None  # when the backlog began; None: there is none

    def look(self, total: int, awaiting: int, now_s: float) -> None:
        """Take a sample. ``total``: first tokens so far. Samples need not be regular: the time between two is one span.

        A span that ends without a backlog is dropped: nobody knows when the backlog ended.
        """
        if awaiting < BACKLOG:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        if self._last is not None:
            since_s, before = self._last
            if total == before and awaiting >= BACKLOG:
                return  # the span goes on
            if awaiting >= BACKLOG:
                self._add(now_s - since_s, total - before)
                self._seen_s = now_s
        self._last = (now_s, total) if awaiting >= BACKLOG else None
        if now_s - self._seen_s > MAX_AGE_S:
            self._spans.clear()
            self._seconds, self._tokens = 0.0, 0

    def backlog_s(self, now_s: float) -> float:
        """For how long at least `BACKLOG` have waited."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def wait_s(self, ahead: int, now_s: float) -> float | None:
        """Seconds until ``ahead`` first tokens have come; None where the rate is not known.

        A rate that was measured over a short time is that of a rush into free slots: as little as half of it is assumed.
        """
        seconds = self._seconds + (0.0 if self._last is None else now_s - self._last[0])
        return ahead * max(seconds, min(2.0 * seconds, WINDOW_S)) / self._tokens if self._tokens else None

    def _add(self, seconds: float, tokens: int) -> None:
        self._spans.append((seconds, tokens))
        self._seconds, self._tokens = self._seconds + seconds, self._tokens + tokens
        while self._seconds - self._spans[0][0] >= WINDOW_S:
            old_s, old = self._spans.popleft()
            self._seconds, self._tokens = self._seconds - old_s, self._tokens - old


class OverloadSpell:
    """An overload: from a chat that even the full bound refuses, until all refused ones could have been answered as well."""

    def __init__(self) -> None:
        self._owed = 0.0  # first tokens: those refused, less those that the replica had spare time for
        self._token_s = 0.0  # seconds per first token while several wait
        self._last: tuple[float, int] | None = None  # time and total of the last look

    def __bool__(self) -> bool:
        return self._owed > 0.0

    def look(self, total: int, now_s: float) -> None:
        """``total``: first tokens so far."""
        if self._owed and self._last is not None:
            since_s, before = self._last
            self._owed = max(0.0, self._owed - ((now_s - since_s) / self._token_s - (total - before)))
        self._last = now_s, total

    def refused(self, token_s: float, limit_s: float) -> None:
        """Count one more, however many choices it asked for. ``limit_s``: maximum duration of the overload once nobody comes."""
        self._token_s = max(token_s, MIN_TOKEN_S)
        self._owed = min(self._owed + 1.0, max(1.0, limit_s / self._token_s))


class ChatAdmission:
    """Admission of chat at one replica. ``max_awaiting``: hard maximum of requests without a first token, whatever is predicted."""

    def __init__(self, max_awaiting: int) -> None:
        self._max_awaiting = max_awaiting
        self._rate = FirstTokenRate()
        self._overload = OverloadSpell()

    def look(self, first_tokens: int, awaiting: int, now_s: float) -> None:
        """Called now and then, and before each question. ``first_tokens``: made so far; ``awaiting``: requests without one."""
        self._rate.look(first_tokens, awaiting, now_s)
        self._overload.look(first_tokens, now_s)

    def wait_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float:
        """Predicted seconds until the last of the request's choices has its first token."""
        ahead = crowd.awaiting + asked.requests - 1
        is_model_right = ahead < BACKLOG or not self._is_crowded(crowd, now_s)
        seen_s = None if is_model_right else self._rate.wait_s(ahead, now_s)
        return asked.prompt_s + min(MAX_LENGTH, max(1.0, asked.length)) * (crowd.prompts_s if seen_s is None else seen_s)

    def refused_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float | None:
        """None: the request is let in. Otherwise seconds after which it is worth asking again.

        A key with more than its fair part of the open requests may fill only the first half of the bound: the second is for other keys.
        """
        wait_s, limit_s = self.wait_s(asked, crowd, now_s), self._limit_s(asked, crowd, now_s)
        places_limit_s = asked.limit_s(is_crowded=True, is_overload=bool(self._overload))
        part = (crowd.open_requests + asked.requests) / max(1, crowd.keys)
        own_share = 1.0 if crowd.keys == 1 or crowd.of_key + asked.requests <= part else OWN_SHARE
        is_full = crowd.awaiting + asked.requests > self._max_awaiting
        late_s = max(wait_s - own_share * limit_s if crowd.awaiting else 0.0, crowd.place_wait_s - own_share * places_limit_s)
        if not is_full and late_s <= 0.0:
            return None
        if is_full or wait_s > limit_s or crowd.place_wait_s > places_limit_s:
            self._overload.refused(self._rate.wait_s(1, now_s) or asked.prompt_s, UNPROMISED_S)
        return max(late_s, wait_s / 2) if is_full else late_s

    def yield_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float:
        """Seconds for which batch work must pause so that fewer chat requests are refused; 0: it need not.

        The wait is that of a prompt of mean length: one long request, which may be refused, does not stop batch work.
        """
        limit_s = asked.limit_s(is_crowded=True, is_overload=True)
        wait_s = self.wait_s(replace(asked, length=1.0), crowd, now_s)
        return min(wait_s, limit_s) if crowd.awaiting and wait_s > YIELD_SHARE * limit_s else 0.0

    def _limit_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float:
        return asked.limit_s(is_crowded=self._is_crowded(crowd, now_s), is_overload=bool(self._overload))

    def _is_crowded(self, crowd: Crowd, now_s: float) -> bool:
        """Whether the load is more than a burst into free slots."""
        return not crowd.slots_free or self._rate.backlog_s(now_s) >= CROWDED_S
