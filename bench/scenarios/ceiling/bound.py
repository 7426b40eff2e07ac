"""The most work that any system could do beside chat whose every gap between two tokens keeps a bound.

In a window of H seconds let there be N steps with T tokens and D decodes in all. A step's time is convex in its tokens, and attention and
contexts add to it in proportion. So N equal steps take the least time, and

    H >= N cost(T / N, D / N) + attention + contexts

where T, D, attention and contexts are chat's and those of R rows. Few steps are best, and there are at least

    N >= busy / gap + (H - busy) / longest        busy: while chat decodes; longest: a step full of prompt tokens
    N >= R (answer - 1) / held                    held: rows that slots and KV have room for beside chat

The largest R is found by bisection, the best pace of chat by trying, from a step of one decode up to the longest gap: a slow one makes few
steps, a fast one frees slots and KV. Rows are fluid, first tokens come at once, and arrivals end no step: no real system has these, which
is why this is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.harness.load.arrivals import Arrival
from harvester.policy.model.load import StepLoad
from harvester.sim.cost import Cost

SLOWER = 1.1  # from one pace tried to the next
FULL = StepLoad(4096, 0.0, 64, 64_000, 64)  # far above the knee of any cost


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds that one more of each takes in a step that is well filled."""

    prompt_token_s: float
    pair_s: float  # of a prompt token and one before it
    decode_s: float
    context_s: float  # of a decode, a token before it

    @classmethod
    def of(cls, cost: Cost) -> Prices:
        full_s = cost(FULL)
        more = (StepLoad(1000), 1e3), (StepLoad(0, 1e6), 1e6), (StepLoad(0, 0.0, 100, 0, 100), 100.0), (StepLoad(0, 0.0, 0, 100_000), 1e5)
        return cls(*((cost(FULL + load) - full_s) / count for load, count in more))

    def work_s(self, prompt: int, tokens: float) -> float:
        """Work of the first ``tokens`` tokens of a request, of which ``prompt`` are its prompt."""
        read, made = min(prompt, tokens), max(0.0, tokens - prompt)
        return self.prompt_token_s * read + self.decode_s * made + self.beside_s(prompt, tokens)

    def beside_s(self, prompt: int, tokens: float) -> float:
        """The part of the work that grows with the context before each token."""
        read, made = min(prompt, tokens), max(0.0, tokens - prompt)
        return self.pair_s * read * read / 2 + self.context_s * (prompt * made + made * (made - 1) / 2 if made else 0.0)


@dataclass(frozen=True, slots=True)
class Room:
    """What bounds an engine's batch. ``longest_s``: of a step that holds no chat."""

    cost: Cost
    slots: int
    kv_tokens: int
    longest_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Of a window. ``work_s``: marginal seconds of all tokens, of chat and rows."""

    work_s: float
    tokens: float
    offline_tokens: float
    rows: float


@dataclass(frozen=True, slots=True)
class _Chat:
    """Chat at one pace in the window. ``held``: mean requests in progress. ``held_tokens``: mean KV tokens."""

    tokens: float
    decodes: float
    beside_s: float
    work_s: float
    busy_s: float
    held: float
    held_tokens: float


def best(room: Room, chat: Sequence[Arrival], rows: Sequence[tuple[int, int]], gap_s: float, window: tuple[float, float]) -> Bound:
    """The highest bound over all paces. ``rows``: prompt and answer tokens of sample rows, whose means are used.

    ``window``: begin and end, in chat's seconds.
    """
    shortest_s = min(gap_s, room.cost(StepLoad(0, 0.0, 1, 1, 1)))
    count = math.ceil(math.log(gap_s / shortest_s, SLOWER)) + 1
    paces_s = (max(shortest_s, gap_s / SLOWER**number) for number in range(count))
    return max((_at(room, chat, rows, pace_s, window) for pace_s in paces_s), key=lambda bound: bound.work_s)


def _at(room: Room, chat: Sequence[Arrival], rows: Sequence[tuple[int, int]], gap_s: float, window: tuple[float, float]) -> Bound:
    prices, length_s = Prices.of(room.cost), window[1] - window[0]
    online, count = _chat(prices, chat, gap_s, window), len(rows)
    prompt, answer = (sum(row[place] for row in rows) / count for place in (0, 1))
    # KV counts a prompt that is there at once and half an answer.
    held = min(room.slots - online.held, (room.kv_tokens - online.held_tokens) / (prompt + answer / 2))
    beside_s = sum(prices.beside_s(*_computed(*row)) for row in rows) / count
    least_steps = online.busy_s / gap_s + (length_s - online.busy_s) / max(gap_s, room.longest_s)

    def fits(wanted: float) -> bool:
        decodes = online.decodes + wanted * (answer - 1)
        steps = max(least_steps, wanted * (answer - 1) / held)
        prompts = (online.tokens - online.decodes + wanted * prompt) / steps
        step_s = room.cost(StepLoad(prompts, 0.0, decodes / steps, 0, decodes / steps))  # type: ignore[arg-type]  # fluid
        return steps * step_s + online.beside_s + wanted * beside_s <= length_s

    found = _largest(fits, length_s / prices.prompt_token_s) if held > 0 else 0.0
    work_s = sum(prices.work_s(*_computed(*row)) for row in rows) / count
    offline = found * (prompt + answer - 1)
    return Bound(online.work_s + found * work_s, online.tokens + offline, offline, found)


def _computed(prompt: int, answer: int) -> tuple[int, float]:
    """Prompt tokens, and all tokens that are computed: the last one of an answer is not."""
    return prompt, float(prompt + answer - 1)


def _chat(prices: Prices, chat: Sequence[Arrival], gap_s: float, window: tuple[float, float]) -> _Chat:
    """Each request has its first token at once and decodes at the pace ``gap_s``."""
    begin_s, end_s = window
    tokens = decodes = beside_s = work_s = busy_s = held = held_tokens = 0.0
    reached_s = begin_s
    for one in sorted(chat, key=lambda one: one.at_s):
        prompt, made = one.prompt_tokens, one.output_tokens - 1
        before = prompt + min(made, max(0.0, (begin_s - one.at_s) / gap_s)) if one.at_s < begin_s else 0.0
        after = prompt + min(made, max(0.0, (end_s - one.at_s) / gap_s)) if one.at_s < end_s else 0.0
        tokens += after - before
        decodes += max(0.0, after - prompt) - max(0.0, before - prompt)
        beside_s += prices.beside_s(prompt, after) - prices.beside_s(prompt, before)
        work_s += prices.work_s(prompt, after) - prices.work_s(prompt, before)
        first_s, last_s = max(begin_s, one.at_s), min(end_s, one.at_s + made * gap_s)
        busy_s += max(0.0, last_s - max(first_s, reached_s))
        reached_s = max(reached_s, last_s)
        held += max(0.0, last_s - first_s)
        held_tokens += max(0.0, last_s - first_s) * (prompt + made / 2)
    length_s = end_s - begin_s
    return _Chat(tokens, decodes, beside_s, work_s, busy_s, held / length_s, held_tokens / length_s)


def _largest(fits: Callable[[float], bool], most: float) -> float:
    """Largest value for which ``fits`` holds, by bisection up to ``most``; 0 if there is none."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
