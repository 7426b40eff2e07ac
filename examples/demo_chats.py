"""Chats that are asked at even times, and what their clients see: time to first token (TTFT) and from token to token (TPOT), in ms."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx

EVERY_S, ANSWER_TOKENS = 0.6, 24
QUESTIONS = ("Hello!", "What are you?", "How do I choose a real model?", "What do you harvest?", "And again?")

Sample = tuple[float, float]  # when it was seen, in seconds of the monotonic clock; how long it took, in ms


class Chats:
    """``told`` is called with the question, the TTFT and the text of every chat that ended."""

    def __init__(self, client: httpx.AsyncClient, model: str, told: Callable[[str, float, str], None]) -> None:
        self._client, self._model, self._told = client, model, told
        self.ttft: list[Sample] = []
        self.tpot: list[Sample] = []

    async def ask(self, question: str) -> None:
        """Stream one answer."""
        messages = [{"role": "user", "content": question}]
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        began_s, text = time.monotonic(), ""
        last_s: float | None = None
        ttft_ms = 0.0
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for pieces in _arrivals(answer):
                now_s = time.monotonic()
                if last_s is None:
                    ttft_ms = (now_s - began_s) * 1000
                    self.ttft.append((now_s, ttft_ms))
                else:  # tokens that came together share their time
                    self.tpot += [(now_s, (now_s - last_s) * 1000 / len(pieces))] * len(pieces)
                text, last_s = text + "".join(pieces), now_s
        self._told(question, ttft_ms, " ".join(text.split()))

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Ask a question every `EVERY_S`, whether or not the last is answered; at the end wait for those that are open."""
        open_chats: set[asyncio.Task[None]] = set()

        async def keep_asking() -> None:
            for question in itertools.cycle(QUESTIONS):
                open_chats.add(asyncio.create_task(self.ask(question)))
                await asyncio.sleep(EVERY_S)

        asking = asyncio.create_task(keep_asking())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(*open_chats)


async def _arrivals(answer: httpx.Response) -> AsyncIterator[list[str]]:
    """Yields the pieces of text that arrived together, each time some arrive."""
    rest = ""
    async for data in answer.aiter_text():
        *events, rest = (rest + data).split("\n\n")
        told = [json.loads(event[6:])["choices"][0]["delta"].get("content") for event in events if event.startswith("data: {")]
        if pieces := [piece for piece in told if piece]:
            yield pieces


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; NaN of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def between(samples: Sequence[Sample], from_s: float, to_s: float = math.inf) -> list[float]:
    """What was seen within the time, in ms."""
    return [ms for at_s, ms in samples if from_s <= at_s < to_s]
