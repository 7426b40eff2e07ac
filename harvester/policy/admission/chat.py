"""Which chat requests are let in: those whose first token is expected in time. Waiting for what comes too late helps nobody.

While slots are free a first token waits for the prompts before it, and the latency model says what those take. Else the requests without a
first token count, at the rate at which first tokens come while several wait for theirs. That rate knows of slots, KV and batch work, which
a model of prompts does not.

An SLO of a few prompts' time cannot be kept in any burst, and refusing does not help. A burst drains by itself, and its chats would rather
have a late first token than none. With such an SLO a chat is let in as if nothing were promised. Overload begins with the first that is
refused even so. From then on the bound is a small multiple of the prompt's own time. It ends once the replica could have answered those
that were refused as well: a burst ends, an overload refuses more than that.

Of any other SLO the bound is somewhat more than it while slots are free. Without slots, or once several have waited for seconds on end, it
is a share that keeps the promise to ninety-nine of a hundred.

Without a slot a first token comes quickly even so, by the slots of others, until no KV is left: who comes next waits for a whole answer.
So a chat is let in only if as many answers as there are chats without a place, a slot or KV, are expected to end in time.

One request may ask for a hundred choices. A few of them are chat; the others are offline work, and nobody waits for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from harvester.policy.model.load import StepLoad

BACKLOG = 4  # requests that wait for a first token: with fewer a step has room for more, and their rate says little
WINDOW_S = 3.0  # of backlog, that the rate is taken over
MAX_AGE_S = 10.0  # without a backlog: then the rate is forgotten
CROWDED_S = 3.0  # with a backlog all the time: then it is no burst into free slots
SHARE = 0.5  # of the time a first token may take, what it may be expected to take: one of a hundred takes twice that and more
BURST_SHARE, BURST_S = 1.25, 1.0  # the same in a burst, and what is never too long then
OWN_CHOICES, OWN_SLOTS = 4, 8  # of one request, so many choices are chat, or as many as this part of the slots
OWN_SHARE = 0.5  # of the time, what every key may fill; the rest is for keys that have no more than their part
UNPROMISED_S, UNPROMISED_ALONE = 10.0, 4.0  # without an SLO a first token may take so long, and so many times its prompt's own time
TIGHT_PROMPTS = 16.0  # an SLO that is shorter than so many times its prompt's own time is not kept by refusing
OVERLOAD_PROMPTS = 4.0  # with such an SLO, the same bound in an overload
TYPICAL_ANSWER = 128  # tokens
KV_SHARE = 0.9  # of all, what chats may hold: their lengths differ
YIELD_SHARE = 0.25  # of the time: with a longer wait, batch work stands still


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request at the door. ``requests``: as many as it has choices that are chat. ``prompt_s``: what its prompt takes by itself.

    ``length``: of its prompt, in means of those before it. A long one waits longer: an order that goes by prompts lets others pass.
    """

    requests: int
    ttft_slo_s: float
    prompt_s: float
    length: float = 1.0

    @property
    def is_tight(self) -> bool:
        """Whether no server keeps its SLO beside a few others."""
        return self.ttft_slo_s < TIGHT_PROMPTS * self.prompt_s

    @property
    def is_promised(self) -> bool:
        """Whether its first token has an SLO that is kept by refusing."""
        return self.ttft_slo_s < math.inf and not self.is_tight

    def limit_s(self, *, is_crowded: bool, is_overload: bool) -> float:
        """How long its first token may be expected to take."""
        if self.is_tight and is_overload:
            return max(SHARE * self.ttft_slo_s, OVERLOAD_PROMPTS * self.prompt_s)
        promised_s = self.ttft_slo_s if self.is_promised else UNPROMISED_S + UNPROMISED_ALONE * self.prompt_s
        return SHARE * promised_s if is_crowded else max(BURST_S, BURST_SHARE * promised_s)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who is there already. ``awaiting``: requests without a first token; ``prompts_s``: what their prompts take by the latency model.

    ``open_requests``: all that have no whole answer, ``of_key``: those of the key that asks, of ``keys`` that have any. ``slots_free``:
    each of them has a slot, and the one that asks. ``place_wait_s``: else, until as many answers have ended as have no place.
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


def places(slots: int, kv_tokens: int, request_tokens: float) -> int:
    """How many chats have a slot, or KV for prompt and answer, ``request_tokens`` each: one without either waits for another's end."""
    return max(slots, int(KV_SHARE * kv_tokens / max(1.0, request_tokens)))


def place_wait_s(open_requests: int, requests: int, held: int, end_s: float) -> float:
    """Seconds until all have one of ``held`` places once ``requests`` more have come, where an answer ends every ``end_s``."""
    return max(0, open_requests + requests - held) * end_s


def in_its_slot_s(seconds: float, open_requests: int, slots: int) -> float:
    """Of an answer that took so long beside ``open_requests``, what it would have taken in a slot of its own."""
    return seconds * min(1.0, slots / max(1, open_requests))


def typical_answer_s(slots: int, prompt_tokens: int, bound_s: Callable[[StepLoad], float]) -> float:
    """Of an answer beside as many others as there are slots, before one has ended. ``bound_s``: P99 of a step."""
    context = prompt_tokens + TYPICAL_ANSWER // 2
    return TYPICAL_ANSWER * bound_s(StepLoad(0, 0.0, slots, slots * context, slots))


class FirstTokenRate:
    """First tokens a second, while at least `BACKLOG` wait for theirs."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, int]] = deque()
        self._seconds, self._tokens = 0.0, 0  # of all spans
        self._last: tuple[float, int] | None = None  # time and total of the last look, where there was a backlog
        self._seen_s = 0.0  # end of the last span
        self._since_s: float | None = None  # when the backlog began; None: there is none

    def look(self, total: int, awaiting: int, now_s: float) -> None:
        """``total``: first tokens so far. Looks need not be regular: what lies between two is one span.

        One that ends without a backlog says nothing: nobody knows when the backlog ended.
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

        A rate that was seen for a short time is that of a rush into free slots: up to half of it is believed.
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
    """From a chat that came too late even for a burst, until all like it could have been answered beside those that were let in."""

    def __init__(self) -> None:
        self._owed = 0.0  # first tokens: of those refused, less what the replica had time for
        self._token_s = 0.0  # that one takes while several wait
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
        """One more, whatever number of choices it asked for. ``limit_s``: that it lasts at most once nobody comes."""
        self._token_s = token_s
        self._owed = min(self._owed + 1.0, max(1.0, limit_s / token_s))


class ChatAdmission:
    """Of one replica. ``max_awaiting``: requests without a first token that are never exceeded, whatever is predicted."""

    def __init__(self, max_awaiting: int) -> None:
        self._max_awaiting = max_awaiting
        self._rate = FirstTokenRate()
        self._overload = OverloadSpell()

    def look(self, first_tokens: int, awaiting: int, now_s: float) -> None:
        """Told now and then, and before each question: first tokens so far, and who awaits one."""
        self._rate.look(first_tokens, awaiting, now_s)
        self._overload.look(first_tokens, now_s)

    def wait_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float:
        """Seconds until the last first token of the request, predicted."""
        ahead = crowd.awaiting + asked.requests - 1
        is_model_right = ahead < BACKLOG or not self._is_crowded(crowd, now_s)
        seen_s = None if is_model_right else self._rate.wait_s(ahead, now_s)
        return asked.prompt_s + max(1.0, asked.length) * (crowd.prompts_s if seen_s is None else seen_s)

    def refused_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float | None:
        """None: it is let in. Otherwise seconds after which it is worth asking again.

        Who asks for more than its part of what is open is let in only into the first half of the time, so that others find the second.
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

    def must_yield(self, asked: Asked, crowd: Crowd, now_s: float) -> bool:
        """Whether batch work stands still so that fewer chat requests are refused."""
        limit_s = asked.limit_s(is_crowded=True, is_overload=True)
        return crowd.awaiting > 0 and self.wait_s(asked, crowd, now_s) > YIELD_SHARE * limit_s

    def _limit_s(self, asked: Asked, crowd: Crowd, now_s: float) -> float:
        return asked.limit_s(is_crowded=self._is_crowded(crowd, now_s), is_overload=bool(self._overload))

    def _is_crowded(self, crowd: Crowd, now_s: float) -> bool:
        """Whether more is there than a burst that finds slots."""
        return not crowd.slots_free or self._rate.backlog_s(now_s) >= CROWDED_S
