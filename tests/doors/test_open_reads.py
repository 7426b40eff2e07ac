"""Requests that only read: a key has so many in work that others are not kept out, and none goes on for a key that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from harvester.config import ServeConfig
from harvester.core import Role
from harvester.errors import BusyError
from harvester.serve.access.gate import Gate, gate_of
from harvester.serve.access.keys import KeyFile, KeyRing
from harvester.serve.access.quota import MAX_IN_WORK
from harvester.serve.access.routes import ANY, OPEN, RouteTable
from harvester.serve.access.wall import guard
from harvester.serve.http.live.broadcast import Broadcaster, Frame
from harvester.serve.http.live.events import add_events
from jobs.access.limits import Limits

TABLE = RouteTable({"GET /slow": ANY, "DELETE /slow": ANY, "POST /slow": ANY, "GET /open": OPEN})


async def asked(gate: Gate, method: str, count: int, path: str = "/slow", keys: tuple[str, ...] = ("one",)) -> tuple[int, list[int]]:
    """How many of ``count`` requests, of ``keys`` in turns, are in work at once, and the statuses of the others."""
    app, goes_on, in_work = FastAPI(), asyncio.Event(), 0

    @app.api_route("/{path}", methods=["GET", "POST", "DELETE"])
    async def slow(path: str) -> None:
        nonlocal in_work
        in_work += 1
        await goes_on.wait()

    guard(app, TABLE, gate)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        headers = [{"authorization": f"Bearer {key}"} for key in keys]
        sent = [asyncio.create_task(http.request(method, path, headers=headers[i % len(keys)])) for i in range(count)]
        for _ in range(50 * count):
            await asyncio.sleep(0)
        refused = [one.result().status_code for one in sent if one.done()]
        goes_on.set()
        await asyncio.gather(*sent)
        again = await http.request("GET", "/slow", headers=headers[0])
    assert again.status_code == 200, "what has ended counts no more"
    return in_work - 1, refused


def gate(tmp_path: Path, *keys: str, **limits: int) -> Gate:
    """Of the applications of jobs, files and batches."""
    config = ServeConfig.model_validate({"engine": {"api_key": list(keys)} if keys else {}, "access": {"limits": limits}})
    return gate_of(config, tmp_path / "keys.json")


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_a_key_without_limits_leaves_room_for_the_requests_of_others(tmp_path: Path, method: str) -> None:
    assert await asked(gate(tmp_path, "one", "two"), method, MAX_IN_WORK + 3) == (MAX_IN_WORK, [429] * 3)


async def test_keys_of_the_configuration_are_counted_one_by_one_though_they_have_one_name(tmp_path: Path) -> None:
    assert await asked(gate(tmp_path, "one", "two", open_requests=2), "POST", 6, keys=("one", "two")) == (4, [429] * 2)
    one, two = (gate(tmp_path, "one", "two").keys.identify(key) for key in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.name == two.name == "config"
    broadcaster = Broadcaster(looks, max_viewers=8)
    with contextlib.ExitStack() as seats:
        for who in (one, one, two, two):
            seats.enter_context(broadcaster.seat(who.counted_as))
        with pytest.raises(BusyError, match="2 pages of this key are open"), broadcaster.seat(two.counted_as):
            pass


async def test_open_routes_and_callers_without_a_key_are_not_counted(tmp_path: Path) -> None:
    assert await asked(gate(tmp_path, "one"), "GET", MAX_IN_WORK + 3, "/open") == (MAX_IN_WORK + 3, [])
    assert await asked(gate(tmp_path), "GET", MAX_IN_WORK + 3) == (MAX_IN_WORK + 3, [])


async def test_reads_do_not_take_the_places_of_open_requests(tmp_path: Path) -> None:
    assert await asked(gate(tmp_path, "one", open_requests=2), "GET", 5) == (5, [])
    assert await asked(gate(tmp_path, "one", open_requests=2), "POST", 5) == (2, [429] * 3)


# -- the events of the page ------------------------------------------------------------------------------------------------------------


async def looks() -> Frame:
    await asyncio.sleep(0)
    return {"look": "1"}


async def test_a_key_has_a_few_of_the_seats() -> None:
    broadcaster = Broadcaster(looks, max_viewers=8)
    with contextlib.ExitStack() as seats:
        for _ in range(2):
            seats.enter_context(broadcaster.seat("ann"))
        with pytest.raises(BusyError, match="2 pages of this key are open"), broadcaster.seat("ann"):
            pass
        seats.enter_context(broadcaster.seat("bob"))
        for _ in range(5):
            seats.enter_context(broadcaster.seat())
        with pytest.raises(BusyError, match="8 pages are open"), broadcaster.seat():
            pass
    with broadcaster.seat("ann"), broadcaster.seat("ann"):
        pass


async def test_a_stream_of_events_ends_once_its_key_is_revoked(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    key = file.add("ann", [Role.BATCH])
    file.add("bob", [Role.BATCH])
    told = 0

    async def look() -> Frame:
        nonlocal told
        told += 1
        if told == 3:
            file.revoke("ann")
        return {"look": str(told)}

    app = FastAPI()
    add_events(app, Broadcaster(look, every_s=0.0), known_s=0.0)
    guard(app, RouteTable({"GET /events": ANY}), Gate(KeyRing((), tmp_path / "keys.json", Limits())))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        sent = (await http.get("/events", headers={"authorization": f"Bearer {key}"})).text  # ends, or httpx waits for ever
    frames = [int(number) for number in re.findall(r"^data: (\d+)$", sent, re.MULTILINE)]
    assert 0 < max(frames) < 3, "frame 3 came with the revocation"
