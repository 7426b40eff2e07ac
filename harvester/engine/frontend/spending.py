"""Usage accounting of a request: the API key it is counted for, and the callback that is told the tokens of its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Protocol, TypeVar

# Both are set around a request by the middleware before the application. Name of the caller's API key; None where no key is required.
ASKER: ContextVar[str | None] = ContextVar("ASKER", default=None)
# Called with prompt and output tokens once for each answer of the engine.
SPENT: ContextVar[Callable[[int, int], None] | None] = ContextVar("SPENT", default=None)


class Choice(Protocol):
    @property
    def token_ids(self) -> Sequence[int]: ...


class Prompted(Protocol):
    @property
    def prompt_token_ids(self) -> Sequence[int] | None: ...


class Output(Prompted, Protocol):
    @property
    def outputs(self) -> Sequence[Choice]: ...


Out = TypeVar("Out", bound=Output)
Read = TypeVar("Read", bound=Prompted)


def told(stream: AsyncGenerator[Out, None], *, is_delta: bool) -> AsyncGenerator[Out, None]:
    """The same outputs; `SPENT` is told their tokens at the end, also after a hang-up. ``is_delta``: each holds only new tokens."""
    spent = SPENT.get()
    return stream if spent is None else _told(stream, spent, is_delta)


def told_prompt(stream: AsyncGenerator[Read, None]) -> AsyncGenerator[Read, None]:
    """As `told`, for an answer without tokens of its own: an embedding, a class, a score."""
    spent = SPENT.get()
    return stream if spent is None else _told_prompt(stream, spent)


async def _told_prompt(stream: AsyncGenerator[Read, None], spent: Callable[[int, int], None]) -> AsyncGenerator[Read, None]:
    prompt_tokens = 0
    try:
        async with aclosing(stream):
            async for output in stream:
                prompt_tokens = max(prompt_tokens, len(output.prompt_token_ids or ()))
                yield output
    finally:
        spent(prompt_tokens, 0)


async def _told(stream: AsyncGenerator[Out, None], spent: Callable[[int, int], None], is_delta: bool) -> AsyncGenerator[Out, None]:
    prompt_tokens = output_tokens = 0
    try:
        async with aclosing(stream):
            async for output in stream:
                tokens = sum(len(one.token_ids) for one in output.outputs)
                output_tokens = output_tokens + tokens if is_delta else max(output_tokens, tokens)
                prompt_tokens = max(prompt_tokens, len(output.prompt_token_ids or ()))
                yield output
    finally:
        spent(prompt_tokens, output_tokens)
