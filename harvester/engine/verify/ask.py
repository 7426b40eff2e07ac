"""Requests to an engine of this process, and a load that keeps its steps full."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from harvester.engine.frontend.llm import HarvestLLM
from harvester.errors import EngineError


async def ask(llm: HarvestLLM, name: str, ids: Sequence[int], tokens: int, *, online: bool = False, **params: Any) -> RequestOutput:
    """The whole greedy answer of exactly ``tokens``; ``params``: further ones of vLLM's `SamplingParams`."""
    given = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, extra_args={"job": "verify"}, **params)
    given.output_kind = RequestOutputKind.FINAL_ONLY
    priority = PRIORITY_ONLINE if online else PRIORITY_OFFLINE
    last: RequestOutput | None = None
    async for output in llm.generate(TokensPrompt(prompt_token_ids=list(ids)), given, name, priority=priority):
        last = output
    if last is None:
        raise EngineError("vLLM ended the request without an answer")
    return last


def random_ids(rng: random.Random, vocabulary: int, tokens: int) -> list[int]:
    """A prompt that no other has; special tokens stand at the ends of a vocabulary."""
    return [rng.randrange(vocabulary // 16, vocabulary * 15 // 16) for _ in range(tokens)]


@asynccontextmanager
async def beside(works: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run coroutines that never end for as long as the block runs; cut off at its end. Raises what ended one of them."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        dead = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in dead:
        task.result()


@asynccontextmanager
async def busy(llm: HarvestLLM, streams: int, prompt_tokens: int, answer_tokens: int, name: str) -> AsyncIterator[None]:
    """Offline requests, ``streams`` at a time, `beside` the block."""
    vocabulary, numbers = llm.model_config.get_vocab_size(), itertools.count()

    async def stream(seed: int) -> None:
        rng = random.Random(seed)
        while True:
            await ask(llm, f"{name}-{next(numbers)}", random_ids(rng, vocabulary, prompt_tokens), answer_tokens)

    async with beside(stream(seed) for seed in range(streams)):
        yield
