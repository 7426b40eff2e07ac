"""The body of a request: how long a client may take to send it, and how much of it is held."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Send

from harvester.errors import BusyError, HarvesterError, ParameterError, QuotaError, SlowBodyError, TooLargeError

MOST_BYTES = 1 << 30
SMALL_BYTES = 1 << 16  # a chat of 15,000 tokens
WAIT_S = 1.0  # retry hint


@dataclass(frozen=True, slots=True)
class Pace:
    """A body may take ``grace_s`` seconds, and one more for each ``bytes_per_s`` bytes that come, of which it saves up ``max_left_s``."""

    grace_s: float = 30.0
    bytes_per_s: int = 16_384
    max_left_s: float = 60.0  # what came fast must not let a client hold its request, and the bytes sent, for days

    def left_s(self, left_s: float, spent_s: float, came_bytes: int) -> float:
        """Seconds left after ``came_bytes`` came within ``spent_s`` of the ``left_s`` that there were."""
        return min(self.max_left_s, left_s - spent_s + came_bytes / self.bytes_per_s)


class BodyRoom:
    """How many bytes of bodies that are not whole yet one process holds: ``most_bytes``, half of it for one key. Used from one event loop.

    The first `SMALL_BYTES` of each body always pass, so that large bodies of some keys refuse no chat of others.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = Counter[str | None]()  # by name of the key

    @contextmanager
    def reading(self, receive: Receive, name: str | None) -> Iterator[Receive]:
        """``receive``, whose bytes are held within the block. It raises `QuotaError` above the key's half, `BusyError` above the whole.

        The only body of its key may be larger than the half, and the only one of all keys larger than the whole, up to the key's limit.
        """
        own_bytes = 0

        async def next_part() -> Message:
            nonlocal own_bytes
            message = await receive()
            came_bytes = len(message.get("body", b""))
            own_bytes += came_bytes
            self._held_bytes[name] += came_bytes
            if own_bytes > SMALL_BYTES:
                self._check(name, own_bytes)
            return message

        try:
            yield next_part
        finally:
            self._held_bytes[name] -= own_bytes
            if not self._held_bytes[name]:
                del self._held_bytes[name]

    def _check(self, name: str | None, own_bytes: int) -> None:
        held_bytes, all_bytes = self._held_bytes[name], self._held_bytes.total()
        if name is not None and own_bytes < held_bytes and held_bytes > self._most_bytes // 2:
            raise QuotaError(f"this key is sending bodies of {held_bytes:,} bytes at once, as many as it may; wait for some", WAIT_S)
        if own_bytes < all_bytes and all_bytes > self._most_bytes:
            raise BusyError(f"clients are sending bodies of {self._most_bytes:,} bytes at once, the most that this process holds")


def paced(receive: Receive, pace: Pace) -> Receive:
    """``receive``, but raises `SlowBodyError` if the body comes more slowly than ``pace``. Messages after the body are not timed."""
    loop = asyncio.get_running_loop()
    left_s, spent_s, held_bytes, is_whole = pace.grace_s, 0.0, 0, False

    async def next_part() -> Message:
        nonlocal left_s, spent_s, held_bytes, is_whole
        if is_whole:
            return await receive()
        begun_s = loop.time()  # time in which the application asks for nothing does not count
        try:
            message = await asyncio.wait_for(receive(), max(0.0, left_s))
        except TimeoutError:
            raise SlowBodyError(
                f"the body of the request came too slowly: {held_bytes:,} bytes in {spent_s + loop.time() - begun_s:.0f} s; send it again, "
                f"at {pace.bytes_per_s:,} bytes a second or more"
            ) from None
        waited_s, came_bytes = loop.time() - begun_s, len(message.get("body", b""))
        left_s = pace.left_s(left_s, waited_s, came_bytes)
        spent_s += waited_s
        held_bytes += came_bytes
        is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return next_part


def bounded(receive: Receive, headers: Headers, max_bytes: int) -> Receive:
    """``receive``, but raises `TooLargeError` once more than ``max_bytes`` have come. Raises it here if ``headers`` announce more."""
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 15 or int(length) > max_bytes):
        raise _too_long(max_bytes)
    held_bytes = 0

    async def next_part() -> Message:
        nonlocal held_bytes
        message = await receive()
        held_bytes += len(message.get("body", b""))
        if held_bytes > max_bytes:
            raise _too_long(max_bytes)
        return message

    return next_part


def answering(receive: Receive, send: Send, answer: Callable[[HarvesterError], Awaitable[None]]) -> tuple[Receive, Send]:
    """For an application that reads its body itself: what ``receive`` raises is answered here, and to it the client has gone."""
    is_begun = is_answered = False

    async def receiving() -> Message:
        nonlocal is_answered
        try:
            return await receive()
        except HarvesterError as error:
            if not (is_begun or is_answered):
                is_answered = True
                await answer(error)
            return {"type": "http.disconnect"}

    async def sending(message: Message) -> None:
        nonlocal is_begun
        is_begun = True
        if not is_answered:
            await send(message)

    return receiving, sending


async def read(receive: Receive) -> bytes:
    """The whole body. Raises `ParameterError` if the client hangs up."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ParameterError("the client hung up before the request was whole")
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that replays a body already read, then continues with ``receive``."""
    left = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return replay


def check_encoding(headers: Headers) -> None:
    """Refuse compressed bodies, so that a small body stays small. Raises `ParameterError`."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ParameterError(f"the body is encoded as {encoding[:40]!r}, which this server does not decode; send it as it is")


def _too_long(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"the body of the request is larger than {max_bytes:,} bytes, the limit of this key; send less at once")
