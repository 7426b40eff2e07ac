"""Requests to a server as generators (flows), so that the blocking and the async client share one implementation.

A flow yields a step and receives its result; an exception of the step is raised at that ``yield``. The clients differ in
how they run a flow: by `drive` or `drive_async`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from harvester.api.errors import UnreachableError, error_of

T = TypeVar("T")
P = ParamSpec("P")

TRIES = 5
RETRY_S = 0.2
PATIENCE_S = 120.0  # of a watch with a server that is away: a cluster that starts anew is away for 40 s
MAX_WAIT_S = 30.0  # a longer Retry-After counts as a refusal
_AGAIN = (429, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``is_safe``: asked again where its answer was lost, because a second one has no further effect."""

    method: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)  # arguments of `httpx.Client.request`, with ``timeout_s`` in place of ``timeout``
    is_safe: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """A blocking call, on a file or a frame. The async client runs it in a thread."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """``body``: the parsed JSON; of an error answer that is not JSON, an object with a ``message``. ``took_s``: until it was here."""

    status: int
    body: Any
    retry_after_s: float | None = None
    took_s: float = 0.0


Step = Ask | Pause | Work
Flow = Generator[Step, Any, T]


def ask(method: str, path: str, *, is_safe: bool = True, tries: int = TRIES, patience_s: float = 0.0, **options: Any) -> Flow[Any]:
    """The JSON of the answer. Raises what `error_of` makes of an error answer.

    While the server is away or busy, asks ``tries`` times; with ``patience_s``, until requests and pauses add up to that.
    """
    waited_s = 0.0
    for attempt in itertools.count(1):
        wait_s = _back_off_s(attempt)
        try:
            answer: HttpAnswer = yield Ask(method, path, options, is_safe)
        except UnreachableError as error:
            waited_s += error.took_s
            if _is_last(attempt, tries, waited_s, patience_s) or not (is_safe or error.is_unsent):
                raise
        else:
            if answer.status < 400:
                return answer.body
            waited_s += answer.took_s
            told_s = wait_of(answer.status, answer.retry_after_s, attempt)
            if told_s is None or _is_last(attempt, tries, waited_s, patience_s):
                raise error_of(answer.status, answer.body)
            wait_s = told_s
        waited_s += wait_s
        yield Pause(wait_s)
    raise AssertionError("unreachable")


def wait_of(status: int, retry_after_s: float | None, attempt: int) -> float | None:
    """Seconds after which a request is made again whose ``attempt`` was answered with that status; None: the answer is final."""
    wait_s = _back_off_s(attempt) if retry_after_s is None else max(retry_after_s, RETRY_S)
    return wait_s if status in _AGAIN and wait_s <= MAX_WAIT_S else None


def _back_off_s(attempt: int) -> float:
    return RETRY_S * 2.0 ** min(attempt, TRIES)


def _is_last(attempt: int, tries: int, waited_s: float, patience_s: float) -> bool:
    return waited_s >= patience_s if patience_s else attempt >= tries


def drive(flow: Flow[T], do: Callable[[Step], Any]) -> T:
    """Run a flow to its end; ``do`` does one step."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            step = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = do(step)
        except Exception as raised:
            error = raised


async def drive_async(flow: Flow[T], do: Callable[[Step], Awaitable[Any]]) -> T:
    """As `drive`. On cancellation the flow ends at its current step."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            step = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = await do(step)
        except Exception as raised:
            error = raised


def blocking(flow: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """A blocking method of a client, which runs ``flow`` on its ``_calls``."""

    @functools.wraps(flow)
    def method(self: Any, /, *given: P.args, **named: P.kwargs) -> T:
        done: T = self._wire.run(flow(self._calls, *given, **named))
        return done

    return method


def awaited(flow: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The same as a coroutine."""

    @functools.wraps(flow)
    async def method(self: Any, /, *given: P.args, **named: P.kwargs) -> T:
        done: T = await self._wire.run(flow(self._calls, *given, **named))
        return done

    return method
