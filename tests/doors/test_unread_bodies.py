"""What a request costs the server before its body is whole: a key that may not ask is refused unread, and what is unread is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi import FastAPI

from harvester.errors import BusyError, QuotaError
from harvester.serve.access.body import SMALL_BYTES, BodyRoom
from harvester.serve.access.gate import Gate
from harvester.serve.access.quota import Quotas
from harvester.serve.access.wall import guard
from jobs.access.limits import Limits
from jobs.testing import ManualClock
from tests.doors.test_wall import TABLE, Directory, application, bearer, client, refusal

Asked = Callable[..., Coroutine[Any, Any, int]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def guarded(clock: ManualClock, **limits: int) -> Asked:
    """Sends a request of key ``boss`` to the wall, with the given ``receive``. Returns the status."""
    app: FastAPI = application()
    guard(app, TABLE, Gate(Directory(Limits(**limits)), quotas=Quotas(clock)))

    async def ask(receive: Callable[[], Awaitable[Any]], path: str = "/say") -> int:
        headers = [(b"authorization", b"Bearer boss"), (b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "http_version": "1.1"}
        statuses = list[int]()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app(scope, receive, send)
        (status,) = statuses
        return status

    return ask


def whole(body: object) -> Callable[[], Awaitable[Any]]:
    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    return receive


async def unread() -> Any:
    raise AssertionError("the body is read")


@pytest.mark.parametrize("path", ["/say", "/busy", "/hear"], ids=["to the model", "another", "read by the route"])
async def test_a_key_that_has_used_its_rate_is_refused_before_its_body_is_read(clock: ManualClock, path: str) -> None:
    ask = guarded(clock, requests_per_minute=1)
    assert await ask(whole({})) == 200
    assert await ask(unread, path) == 429
    clock.advance(60.0)
    assert await ask(whole({})) == 200


async def test_a_request_whose_body_still_comes_is_in_work(clock: ManualClock) -> None:
    ask, has_begun, goes_on = guarded(clock, open_requests=1), asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        has_begun.set()
        await goes_on.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    first = asyncio.create_task(ask(slow))
    await has_begun.wait()
    assert await ask(unread) == 429
    goes_on.set()
    assert (await first, await ask(whole({}))) == (200, 200)


async def test_a_request_that_is_refused_for_its_body_counts_once(clock: ManualClock) -> None:
    """Else a key could have bodies read and refused for nothing, as often as it likes."""
    ask = guarded(clock, requests_per_minute=10, max_choices=50)
    for body, status in (({"n": 5}, 200), ({"n": 6}, 429), ([], 400), ({"n": 51}, 413), ({"n": 2}, 200), ({}, 429)):
        assert await ask(whole(body)) == status, body


async def test_a_request_for_more_than_a_minutes_worth_passes_when_the_minute_is_full(clock: ManualClock) -> None:
    ask = guarded(clock, requests_per_minute=10)
    assert await ask(whole({"n": 100})) == 200
    clock.advance(9 * 60.0)
    assert await ask(whole({})) == 429
    clock.advance(60.0 + 6.1)
    assert await ask(whole({})) == 200


async def test_a_refused_request_for_many_answers_passes_when_it_was_told_to_come_again(clock: ManualClock) -> None:
    gate = Gate(Directory(Limits(requests_per_minute=60)), quotas=Quotas(clock))
    async with client(gate) as http:
        assert (await http.post("/say", json={"n": 50}, headers=bearer("boss"))).status_code == 200
        answer = await http.post("/say", json={"n": 30}, headers=bearer("boss"))
        assert refusal(answer, 429)["code"] == "rate_limit_exceeded"
        clock.advance(float(answer.headers["retry-after"]))
        assert (await http.post("/say", json={"n": 30}, headers=bearer("boss"))).status_code == 200


# -- bodies that are not whole ---------------------------------------------------------------------------------------------------------


def parts(*sizes: int) -> Callable[[], Awaitable[Any]]:
    left = list(sizes)

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(left.pop(0)), "more_body": bool(left)}

    return receive


async def test_a_key_may_have_half_of_the_bytes_that_are_held_and_the_only_body_all() -> None:
    room = BodyRoom(most_bytes=10 * SMALL_BYTES)
    with room.reading(parts(20 * SMALL_BYTES), "ann") as alone:
        await alone()
    with room.reading(parts(3 * SMALL_BYTES), "ann") as first, room.reading(parts(SMALL_BYTES, SMALL_BYTES, 1), "ann") as second:
        for part in (first, second, second):
            await part()
        with pytest.raises(QuotaError, match="this key is sending bodies of 327,681 bytes at once"):
            await second()
        with room.reading(parts(SMALL_BYTES), "ann") as small, room.reading(parts(3 * SMALL_BYTES), "bob") as other:
            assert [len((await part())["body"]) for part in (small, other)] == [SMALL_BYTES, 3 * SMALL_BYTES]
    with room.reading(parts(3 * SMALL_BYTES), "ann") as first, room.reading(parts(2 * SMALL_BYTES), "ann") as second:
        assert [len((await part())["body"]) for part in (first, second)] == [3 * SMALL_BYTES, 2 * SMALL_BYTES]


@pytest.mark.parametrize("names", [("ann", "bob", "cleo"), (None, None, None)], ids=["keys", "without keys"])
async def test_all_keys_together_are_bounded_too(names: tuple[str | None, ...]) -> None:
    room = BodyRoom(most_bytes=8 * SMALL_BYTES)
    with room.reading(parts(4 * SMALL_BYTES), names[0]) as one, room.reading(parts(4 * SMALL_BYTES), names[1]) as two:
        await one()
        await two()
        with room.reading(parts(SMALL_BYTES, 1), names[2]) as three, room.reading(parts(SMALL_BYTES, 1), names[2]) as four:
            await three()
            await four()
            with pytest.raises(BusyError, match="clients are sending bodies"):
                await three()
    with room.reading(parts(4 * SMALL_BYTES), names[2]) as three:
        await three()
    with ExitStack() as bodies:
        one, two, three = (bodies.enter_context(room.reading(parts(3 * SMALL_BYTES), name)) for name in names)
        await one()
        await two()
        with pytest.raises(BusyError, match="clients are sending bodies"):
            await three()


async def test_a_body_that_waits_for_room_is_told_to_come_again() -> None:
    async with client(Gate(Directory(), bodies=BodyRoom(most_bytes=4 * SMALL_BYTES))) as http:
        meanwhile = list[int]()

        async def body() -> AsyncIterator[bytes]:
            yield b" " * 2 * SMALL_BYTES
            answer = await http.post("/say", content=b" " * 2 * SMALL_BYTES + b"{}", headers=bearer("boss"))
            assert "retry-after" in answer.headers
            meanwhile.append(answer.status_code)
            yield b"{}"

        assert (await http.post("/say", content=body(), headers=bearer("boss"))).status_code == 200
        assert meanwhile == [429]
