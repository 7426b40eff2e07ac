"""A client that hangs up while its answer is made, and what its key is charged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harvester.engine.frontend.spending import SPENT


async def charged(answer: Callable[[], AsyncIterator[Any]], began: asyncio.Event) -> list[tuple[int, int]]:
    """Prompt and output tokens, as told, of an answer whose client hangs up after ``began``."""

    async def ask() -> None:
        async for _ in answer():
            pass

    heard: list[tuple[int, int]] = []
    token = SPENT.set(lambda *tokens: heard.append(tokens))
    asking = asyncio.create_task(ask())
    SPENT.reset(token)
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    return heard
