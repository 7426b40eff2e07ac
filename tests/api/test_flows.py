"""Flows of the client, driven without a server: what is asked again, for how long, and what an upload sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harvester.api import uploads
from harvester.api.errors import HarvesterError, UnreachableError
from harvester.api.flow import Ask, Flow, HttpAnswer, Pause, Step, Work, drive
from harvester.api.job import Job
from harvester.api.uploads import upload
from harvester.api.wire import Address, AsyncWire, Wire
from jobs.testing import ManualClock

RUNNING = {"id": "docs-1", "state": "running", "rows_ok": 1, "rows_error": 0, "rows_running": 1, "rows_total": 2, "message": None}
COMPLETED = RUNNING | {"state": "completed", "rows_ok": 2, "rows_running": 0}


def busy(retry_after_s: float | None) -> HttpAnswer:
    return HttpAnswer(503, {"message": "starting"}, retry_after_s)


def lost() -> HttpAnswer:
    raise UnreachableError("no server answers")


AWAY: dict[str, Callable[[], HttpAnswer]] = {
    "503 and Retry-After: 3": lambda: busy(3.0),
    "503 and Retry-After: 0": lambda: busy(0.0),
    "503": lambda: busy(None),
    "no server": lost,
}


def watch(clock: ManualClock, away: Callable[[], HttpAnswer], away_s: float) -> int:
    """Watch a job of a server that is away from the second request on, for so long. Returns the number of requests."""
    asked = 0

    def do(step: Step) -> Any:
        nonlocal asked
        if isinstance(step, Pause):
            return clock.advance(step.seconds)
        asked += 1
        if asked == 1:
            return HttpAnswer(200, RUNNING)
        return HttpAnswer(200, COMPLETED) if clock() >= away_s else away()

    wire: Any = None
    drive(Job(wire, RUNNING)._watched(False, 0.5), do)
    return asked


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY.keys())
def test_a_watch_outlives_a_server_that_is_away_for_a_minute(away: Callable[[], HttpAnswer]) -> None:
    clock = ManualClock(0.0)
    assert watch(clock, away, 60.0) > 10
    assert clock() < 70.0, "it goes on soon after the server does"


def silent() -> HttpAnswer:
    raise UnreachableError("no server answers", took_s=60.0)


TAKING: dict[str, tuple[Callable[[], HttpAnswer], float]] = {
    "no answer": (silent, 60.0),
    "504 of a proxy": (lambda: HttpAnswer(504, {"message": "starting"}, took_s=20.0), 20.0),
}


@pytest.mark.parametrize(("away", "took_s"), TAKING.values(), ids=TAKING.keys())
def test_the_time_of_requests_counts_as_waited(away: Callable[[], HttpAnswer], took_s: float) -> None:
    clock = ManualClock(0.0)

    def slow() -> HttpAnswer:
        clock.advance(took_s)
        return away()

    with pytest.raises(HarvesterError, match=r"starting|no server answers"):
        watch(clock, slow, 1e9)
    assert 120.0 < clock() < 120.0 + took_s + 7.0


@pytest.mark.parametrize("status", [503, None], ids=["an answer", "no answer"])
async def test_a_request_tells_what_it_took(monkeypatch: pytest.MonkeyPatch, status: int | None) -> None:
    clock = ManualClock(100.0)
    monkeypatch.setattr("harvester.api.wire.monotonic", clock)

    def answer(request: httpx.Request) -> httpx.Response:
        clock.advance(2.0)
        if status is None:
            raise httpx.ReadTimeout("late")
        return httpx.Response(status, json={})

    def once() -> Flow[float]:
        try:
            given: HttpAnswer = yield Ask("GET", "/")
        except UnreachableError as error:
            return error.took_s
        return given.took_s

    monkeypatch.setattr(Address, "options", lambda self: {"base_url": self.url, "transport": httpx.MockTransport(answer)})
    address = Address("http://127.0.0.1:1", None)
    assert Wire(address).run(once()) == 2.0
    assert await AsyncWire(address).run(once()) == 2.0


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY.keys())
def test_a_watch_gives_up_a_server_that_stays_away(away: Callable[[], HttpAnswer]) -> None:
    with pytest.raises(HarvesterError, match=r"starting|no server answers"):
        watch(ManualClock(0.0), away, 1e9)


def test_a_file_that_becomes_shorter_while_it_is_uploaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 4)
    path = tmp_path / "docs.csv"
    path.write_text("text\nfish\n")
    sent = 0

    def do(step: Step) -> Any:
        nonlocal sent
        if isinstance(step, Work):
            return step.call()
        assert isinstance(step, Ask)
        if step.method == "PUT":
            assert step.options["content"], "an empty piece"
            sent += len(step.options["content"])
            path.write_text("tex")
        return HttpAnswer(200, {"bytes": sent, "is_whole": False})

    with pytest.raises(HarvesterError, match=r"docs\.csv had 10 bytes and became shorter while it was uploaded; upload it again"):
        drive(upload(path), do)
    assert sent == 4
