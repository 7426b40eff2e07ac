"""What the engines of scenario ``checkpoint`` are asked: offline work with bursts of chat or chats one by one, or chat alone."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.harness.measure.latency import percentiles
from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE

OFFLINE_TOKENS, OFFLINE_OUTPUT = (300, 700), 160
BURST, EVERY_S = 12, 6.0
BURST_TOKENS, BURST_OUTPUT = 300, 24
SINGLES_PER_S, SINGLE_TOKENS, SINGLE_OUTPUT = 3.0, 100, 16
WARM_S = 12.0  # two bursts
STREAMS = 24  # offline requests open at a time
CHAT_TOKENS = (100, 300)
CHAT_OUTPUT, CHAT_SIGMA, MAX_OUTPUT = 80, 1.0, 500  # median, shape and end of a log-normal: most answers are short, some are long
CLOSED = 40  # chats at once, to measure how many the engine can answer
VOCAB = (100, 4000)


@dataclass(slots=True)
class Seen:
    """What was seen of one engine. Times in seconds. ``latency_s``: of each request, arrival to end, with its answer tokens."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    online_requests: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    latency_s: list[tuple[float, int]] = field(default_factory=list)
    preemptions: int = 0

    def normalized_ms(self) -> dict[str, float | None]:
        """Latency a token, mean and percentiles (FastServe 6.1)."""
        values = [1e3 * seconds / tokens for seconds, tokens in self.latency_s]
        return {"mean": round(sum(values) / len(values), 2) if values else None, **percentiles(values)}


class Span:
    """The part of a run that is measured, between `begin` and `end`; ``seen`` has only what comes after its begin.

    ``look`` reads the engine's counters; ``done`` is what they rose by.
    """

    def __init__(self, look: Callable[[], dict[str, float]]) -> None:
        self._look = look
        self._before: dict[str, float] = {}
        self.seen, self.done = Seen(), dict[str, float]()
        self.began_s = self.ended_s = 0.0

    def begin(self) -> None:
        self.seen, self._before, self.began_s = Seen(), self._look(), time.monotonic()

    def end(self) -> None:
        self.ended_s = time.monotonic()
        self.done = {name: value - self._before[name] for name, value in self._look().items()}


def all_seen(rounds: Iterable[Seen]) -> Seen:
    """What was seen in all rounds; names of requests are those of their round."""
    whole = Seen()
    for seen in rounds:
        whole.ttft_s += seen.ttft_s
        whole.gaps_s += seen.gaps_s
        whole.latency_s += seen.latency_s
        whole.tokens |= seen.tokens
        whole.online_requests += seen.online_requests
        whole.preemptions += seen.preemptions
    return whole


async def mixed(llm: Any, span: Span, seconds: float, seed: int) -> None:
    """Offline work, and bursts of online requests beside it."""
    rng, bursts = random.Random(seed), max(1, int((WARM_S + seconds) / EVERY_S))
    at_s = [(number + 0.5) * EVERY_S for number in range(bursts) for _ in range(BURST)]
    await _beside(llm, span, seconds, seed, rng, [(when_s, _prompt(rng, BURST_TOKENS), BURST_OUTPUT) for when_s in at_s])


async def steady(llm: Any, span: Span, seconds: float, seed: int) -> None:
    """Offline work, and online requests one by one beside it (Poisson)."""
    rng = random.Random(seed)
    given, at_s = [], rng.expovariate(SINGLES_PER_S)
    while at_s < WARM_S + seconds:
        given.append((at_s, _prompt(rng, SINGLE_TOKENS), SINGLE_OUTPUT))
        at_s += rng.expovariate(SINGLES_PER_S)
    await _beside(llm, span, seconds, seed, rng, given)


async def _beside(llm: Any, span: Span, seconds: float, seed: int, rng: random.Random, online: list[tuple[float, list[int], int]]) -> None:
    """``online``: seconds from the start, prompt and output tokens of each. ``seconds`` are measured after a warm-up, then all offline work
    is cut off, and the ends of the online requests are waited for.
    """
    waiting = iter(enumerate([_prompt(rng, rng.randint(*OFFLINE_TOKENS)) for _ in range(2000)]))

    async def stream() -> None:
        for number, ids in waiting:
            await _offline(llm, f"{seed}-{number}", ids, span)

    async def arrivals() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, (at_s, ids, output) in enumerate(online):
                await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
                tasks.create_task(_online(llm, f"{seed}-chat-{number}", ids, output, span))

    began_s = time.monotonic()
    streams, chats = [asyncio.create_task(stream()) for _ in range(STREAMS)], asyncio.create_task(arrivals())
    await asyncio.sleep(WARM_S)
    span.begin()
    await asyncio.sleep(seconds)
    span.end()
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await chats


async def chat(llm: Any, span: Span, seconds: float, seed: int, rate: float) -> None:
    """Chats alone: Poisson arrivals at ``rate`` a second for ``seconds``, all ends waited for; some before them as a warm-up."""
    await _chats(llm, span, WARM_S, seed + 1, rate)
    span.begin()
    await _chats(llm, span, seconds, seed, rate)
    span.end()


async def _chats(llm: Any, span: Span, seconds: float, seed: int, rate: float) -> None:
    rng = random.Random(seed)
    given = [_chat(rng) for _ in range(int(rate * seconds) + 1)]
    at_s, began_s = 0.0, time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, (ids, output) in enumerate(given):
            at_s += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            tasks.create_task(_online(llm, f"{seed}-{number}", ids, output, span))


async def closed(llm: Any, span: Span, seconds: float, seed: int) -> None:
    """`CLOSED` chats at once, measured for ``seconds`` after as long a warm-up, then cut off."""
    rng = random.Random(seed)

    async def stream(number: int) -> None:
        for turn in itertools.count():
            await _online(llm, f"{seed}-{number}-{turn}", *_chat(rng), span)

    streams = [asyncio.create_task(stream(number)) for number in range(CLOSED)]
    await asyncio.sleep(seconds)
    span.begin()
    await asyncio.sleep(seconds)
    span.end()
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


def _chat(rng: random.Random) -> tuple[list[int], int]:
    return _prompt(rng, rng.randint(*CHAT_TOKENS)), _output(rng)


def _prompt(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(*VOCAB) for _ in range(tokens)]


def _output(rng: random.Random) -> int:
    return min(MAX_OUTPUT, max(2, round(CHAT_OUTPUT * rng.lognormvariate(0.0, CHAT_SIGMA))))


async def _offline(llm: Any, name: str, ids: list[int], span: Span) -> None:
    began_s = time.monotonic()
    async for output in _answer(llm, name, ids, OFFLINE_OUTPUT, PRIORITY_OFFLINE):
        if output.finished:
            _ended(span.seen, name, output, began_s)


async def _online(llm: Any, name: str, ids: list[int], tokens: int, span: Span) -> None:
    began_s = last_s = time.monotonic()
    first = True
    span.seen.online_requests += 1
    async for output in _answer(llm, name, ids, tokens, PRIORITY_ONLINE):
        now_s = time.monotonic()
        (span.seen.ttft_s if first else span.seen.gaps_s).append(now_s - last_s)
        last_s, first = now_s, False
        if output.finished:
            _ended(span.seen, name, output, began_s)


def _ended(seen: Seen, name: str, output: Any, began_s: float) -> None:
    seen.tokens[name] = list(output.outputs[0].token_ids)
    seen.latency_s.append((time.monotonic() - began_s, len(seen.tokens[name])))
    seen.preemptions += int(getattr(output.metrics, "num_preemptions", 0) or 0)


def _answer(llm: Any, name: str, ids: list[int], tokens: int, priority: int) -> Any:
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.CUMULATIVE)
    return llm.generate(TokensPrompt(prompt_token_ids=ids), params, name, priority=priority)
