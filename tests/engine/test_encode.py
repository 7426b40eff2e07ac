"""Whom an embedding is charged to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.engine.frontend.spending import SPENT

pytestmark = pytest.mark.engine


async def test_the_tokens_of_an_embedding_are_charged_to_the_key_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    from harvester.engine.vllm.frontend.client import HarvestLLM

    async def encode(*given: Any, **named: Any) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(prompt_token_ids=[1, 2, 3])

    monkeypatch.setattr(AsyncLLM, "encode", encode)
    llm: Any = object.__new__(HarvestLLM)
    heard: list[tuple[int, int]] = []
    token = SPENT.set(lambda *tokens: heard.append(tokens))
    assert len([output async for output in llm.encode("a", None, "embd-1")]) == 1
    SPENT.reset(token)
    assert heard == [(3, 0)]
