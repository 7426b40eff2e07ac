"""What the engines are asked: chat at given times, beside offline work that never ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.load.arrivals import Chat
from bench.harness.measure.latency import percentiles
from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from harvester.engine.verify.ask import beside, random_ids
from harvester.engine.vllm.frontend.client import HarvestLLM

DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Rows:
    """Offline work: so many requests open at a time, prompts between ``shortest`` and ``longest`` tokens."""

    open: int
    shortest: int
    longest: int
    answer_tokens: int


@dataclass(slots=True)
class Seen:
    """What the chat clients saw: seconds to the first token and between two tokens; chats sent, and chats answered to their end."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    sent: int = 0
    ended: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        ttft, gaps = ([1e3 * value for value in values] for values in (self.ttft_s, self.gaps_s))
        return {"ttft_ms": percentiles(ttft), "tpot_ms": percentiles(gaps), "online_requests": self.sent, "online_ended": self.ended}


@asynccontextmanager
async def offline(llm: HarvestLLM, rows: Rows | None, seed: int, name: str) -> AsyncIterator[None]:
    """Keep ``rows.open`` offline requests open while the block runs (`beside`)."""
    vocabulary, numbers = llm.model_config.get_vocab_size(), itertools.count()

    async def stream(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        assert rows is not None
        while True:
            ids = random_ids(rng, vocabulary, rng.randint(rows.shortest, rows.longest))
            async for _ in answers(llm, f"{name}-row-{next(numbers)}", ids, rows.answer_tokens, PRIORITY_OFFLINE):
                pass

    async with beside(stream(number) for number in range(rows.open if rows else 0)):
        yield


async def play(llm: HarvestLLM, chats: Sequence[Chat], seconds: float, seed: int, name: str) -> Seen:
    """Send ``chats`` at their times and measure for ``seconds``; then wait up to `DRAIN_S` for their ends, and cancel the rest."""
    rng, vocabulary, seen = random.Random(seed), llm.model_config.get_vocab_size(), Seen()
    prompts = [random_ids(rng, vocabulary, chat.prompt_tokens) for chat in chats]
    seen.began_s = time.monotonic()
    tasks = [asyncio.create_task(_chat(llm, f"{name}-{i}", chat, prompts[i], seen)) for i, chat in enumerate(chats)]
    await asyncio.sleep(seconds)
    seen.ended_s = time.monotonic()
    if tasks:
        done, left = await asyncio.wait(tasks, timeout=DRAIN_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()
    return seen


async def capacity_per_s(llm: HarvestLLM, at_once: int, lengths: tuple[int, int], seconds: float) -> float:
    """Chats of one length that the engine answers in a second, with ``at_once`` open all the time."""
    ended, rng, vocabulary, numbers = 0, random.Random(9), llm.model_config.get_vocab_size(), itertools.count()

    async def stream() -> None:
        nonlocal ended
        while True:
            ids = random_ids(rng, vocabulary, lengths[0])
            async for _ in answers(llm, f"closed-{next(numbers)}", ids, lengths[1], PRIORITY_ONLINE):
                pass
            ended += 1

    tasks = [asyncio.create_task(stream()) for _ in range(at_once)]
    await asyncio.sleep(seconds / 3)
    before, began_s = ended, time.monotonic()
    await asyncio.sleep(seconds)
    found = (ended - before) / (time.monotonic() - began_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return max(found, 1.0 / seconds)


async def _chat(llm: HarvestLLM, name: str, chat: Chat, ids: list[int], seen: Seen) -> None:
    """A chat that is cancelled while it waits for a token counts with the wait so far, which is too short."""
    await asyncio.sleep(max(0.0, seen.began_s + chat.at_s - time.monotonic()))
    seen.sent += 1
    last_s, first = time.monotonic(), True
    try:
        async for _ in answers(llm, name, ids, chat.answer_tokens, PRIORITY_ONLINE):
            now_s = time.monotonic()
            (seen.ttft_s if first else seen.gaps_s).append(now_s - last_s)
            last_s, first = now_s, False
        seen.ended += 1
    except asyncio.CancelledError:
        (seen.ttft_s if first else seen.gaps_s).append(time.monotonic() - last_s)
        raise


def answers(llm: HarvestLLM, name: str, ids: list[int], tokens: int, priority: int) -> Any:
    """Greedy decoding to exactly ``tokens`` tokens; one output for each chunk."""
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    return llm.generate(TokensPrompt(prompt_token_ids=ids), params, name, priority=priority)
