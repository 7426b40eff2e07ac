"""Requests to an engine of this process, and a load that keeps its steps full."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from harvester.engine.frontend.engine import Generated, TokenEngine
from harvester.errors import EngineError
from jobs.hint import JOB_ARG, VERIFY

MAX_S = 600.0  # for the work of an engine that runs; its start has vLLM's own bound


async def ask(llm: TokenEngine, name: str, ids: Sequence[int], tokens: int, *, online: bool = False, **sampling: Any) -> Generated:
    """The whole greedy answer of exactly ``tokens``; ``sampling``: further sampling parameters, by vLLM's names."""
    priority = PRIORITY_ONLINE if online else PRIORITY_OFFLINE
    return await llm.complete(
        name, ids, max_tokens=tokens, priority=priority, extra={JOB_ARG: VERIFY}, sampling={"ignore_eos": True, **sampling}
    )


def random_ids(rng: random.Random, vocabulary: int, tokens: int) -> list[int]:
    """A random prompt, unlike any other. Leaves out the ends of the vocabulary, where special tokens are."""
    return [rng.randrange(vocabulary // 16, vocabulary * 15 // 16) for _ in range(tokens)]


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Raises `EngineError` if the block takes longer than `MAX_S`: the engine hangs, or computes far too slowly."""
    try:
        async with asyncio.timeout(MAX_S) as end:
            yield
    except TimeoutError as error:
        if not end.expired():
            raise
        raise EngineError(f"the engine started, but did not do its work within {MAX_S:g} s") from error


@asynccontextmanager
async def beside(works: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run endless coroutines beside the block, and cancel them at its end. Raises the error of one that ended before."""
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
async def busy(llm: TokenEngine, streams: int, prompt_tokens: int, answer_tokens: int, name: str) -> AsyncIterator[None]:
    """Keep ``streams`` offline requests running `beside` the block."""
    vocabulary, numbers = llm.sizes.vocabulary, itertools.count()

    async def stream(seed: int) -> None:
        rng = random.Random(seed)
        while True:
            await ask(llm, f"{name}-{next(numbers)}", random_ids(rng, vocabulary, prompt_tokens), answer_tokens)

    async with beside(stream(seed) for seed in range(streams)):
        yield
