"""Usage accounting of a request: its API key, the callback that is told the tokens of its answer, and the most tokens of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

# Both are set around a request by the middleware before the application. Name of the caller's API key; None where no key is required.
ASKER: ContextVar[str | None] = ContextVar("ASKER", default=None)
# Called with prompt and output tokens once for each answer of the engine.
SPENT: ContextVar[Callable[[int, int], None] | None] = ContextVar("SPENT", default=None)
_MOST_TOKENS: ContextVar[int | None] = ContextVar("MOST_TOKENS", default=None)

T = TypeVar("T")


class Bounded(Protocol):
    """vLLM's sampling parameters."""

    max_tokens: int | None


@contextmanager
def at_most(tokens: int | None) -> Iterator[None]:
    """Answers that are asked for within the block end after ``tokens`` output tokens. None: no limit."""
    token = _MOST_TOKENS.set(tokens)
    try:
        yield
    finally:
        _MOST_TOKENS.reset(token)


def shorten(params: Bounded) -> None:
    """Lower ``max_tokens`` to the limit of `at_most`. A client that gives none would get as much as the context holds."""
    most = _MOST_TOKENS.get()
    if most is not None and (params.max_tokens is None or params.max_tokens > most):
        params.max_tokens = most


def shortening(search: Callable[..., T]) -> Callable[..., T]:
    """``search``, a method of vLLM's, which first has `shorten` lower its ``params``: it asks the engine for one token at a time."""

    def shortened(*given: Any, params: Bounded, **named: Any) -> T:
        shorten(params)
        return search(*given, params=params, **named)

    return shortened


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


class Collector(Protocol):
    """Holds the outputs of a request that nobody has read yet; vLLM merges them into one."""

    def get_nowait(self) -> Any: ...


# Takes the collector of the request that a counted stream is about to send.
_SENDS: ContextVar[list[Collector] | None] = ContextVar("SENDS", default=None)


def sent(collector: Collector) -> None:
    """A request was sent, and its outputs come to ``collector``. Called within the first step of its stream."""
    held = _SENDS.get()
    if held is not None:
        held.append(collector)
        _SENDS.set(None)


def counted(stream: AsyncGenerator[Out, None], *, is_delta: bool) -> AsyncGenerator[Out, None]:
    """The same outputs; `SPENT` is told their tokens at the end. ``is_delta``: each holds only new tokens.

    After a hang-up it is told what was made until then, also of an answer that comes in one piece. A prompt counts as soon as the engine
    has it, even if it still waits there: vLLM does not tell how much of it was computed.
    """
    spent = SPENT.get()
    return stream if spent is None else _counted(stream, spent, is_delta)


def counted_prompt(stream: AsyncGenerator[Read, None]) -> AsyncGenerator[Read, None]:
    """As `counted`, for an answer without tokens of its own: an embedding, a class, a score."""
    spent = SPENT.get()
    return stream if spent is None else _counted_prompt(stream, spent)


async def _counted_prompt(stream: AsyncGenerator[Read, None], spent: Callable[[int, int], None]) -> AsyncGenerator[Read, None]:
    prompt_tokens = 0
    held: list[Collector] = []
    _SENDS.set(held)
    try:
        async with aclosing(stream):
            async for output in stream:
                prompt_tokens = max(prompt_tokens, _prompt_tokens(output))
                yield output
    finally:
        spent(max([prompt_tokens, *map(_prompt_tokens, _unread(held))]), 0)


async def _counted(stream: AsyncGenerator[Out, None], spent: Callable[[int, int], None], is_delta: bool) -> AsyncGenerator[Out, None]:
    tally = _Tally(is_delta)
    held: list[Collector] = []
    _SENDS.set(held)
    try:
        async with aclosing(stream):
            async for output in stream:
                tally.add(output)
                yield output
    finally:
        for output in _unread(held):
            tally.add(output)
        spent(tally.prompt_tokens, tally.output_tokens)


@dataclass(slots=True)
class _Tally:
    is_delta: bool
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, output: Output) -> None:
        tokens = sum(len(one.token_ids) for one in output.outputs)
        self.output_tokens = self.output_tokens + tokens if self.is_delta else max(self.output_tokens, tokens)
        self.prompt_tokens = max(self.prompt_tokens, _prompt_tokens(output))


def _prompt_tokens(output: Prompted) -> int:
    return len(output.prompt_token_ids or ())


def _unread(held: list[Collector]) -> Iterator[Any]:
    """Outputs that nobody has read: of a request that was aborted, vLLM leaves what it had made so far."""
    for collector in held:
        output = None
        with suppress(Exception):  # an error of the engine, which the reader of the stream gets
            output = collector.get_nowait()
        if output is not None:
            yield output
