"""``GET /events``: state of replicas and jobs, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from harvester.errors import HarvesterError
from harvester.serve.access.identity import Identity
from harvester.serve.access.who import Who, is_known
from harvester.serve.http.live.broadcast import Broadcaster, Frame
from harvester.serve.http.live.rates import RateWindow
from jobs.ledger.counts import JobsNow

log = logging.getLogger("harvester.page")

LOOK_WAIT_S = 5.0
KNOWN_S = 10.0  # between two looks at the key of an open stream
MAX_ENDED, MAX_ACTIVE = 50, 200  # jobs in a frame, besides some of each owner
RECONNECT_MS = 2000
ASLEEP = "The model is not loaded while nobody uses it. The next chat or job loads it."
_LEFT_OUT = {"response_lengths", "results", "notes", "rows_recomputed", "preemptions", "cached_tokens"}

T = TypeVar("T")
Replicas = Callable[[], Awaitable[list[dict[str, Any]]]]


class JobsSeen(Protocol):
    async def now(self, ended: int, active: int | None = None) -> JobsNow: ...


class FrameSource:
    """Takes the frames of a `Broadcaster`: every replica's `now` and all jobs. If either cannot be fetched, the event ``trouble`` says so.

    ``is_asleep``: whether no replica is expected now; None: never. ``now_s``: the time of a frame, which is its event ``look``.
    """

    def __init__(
        self,
        replicas: Replicas,
        ledger: JobsSeen,
        server: dict[str, Any],
        is_asleep: Callable[[], bool] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._replicas, self._ledger = replicas, ledger
        self._is_asleep = is_asleep
        self._server = json.dumps(server)
        self._rates = RateWindow()
        self._now_s = now_s

    async def __call__(self) -> Frame:
        told, listed = await asyncio.gather(_in_time(self._replicas), _in_time(lambda: self._ledger.now(MAX_ENDED, MAX_ACTIVE)))
        frame, trouble = {"look": json.dumps(round(self._now_s(), 3)), "server": self._server}, None
        if told is None:
            is_asleep = self._is_asleep is not None and self._is_asleep()
            trouble = ASLEEP if is_asleep else "No replica answers; what is shown is from before."
        else:
            frame["replicas"] = json.dumps(self._rates.take(told))
        if listed is None:
            trouble = "The ledger does not answer; jobs are as they were."
        else:
            frame["jobs"] = _jobs(listed)
        return {**frame, "trouble": json.dumps(trouble)}  # never empty: browsers drop events without data


async def _in_time(work: Callable[[], Awaitable[T]]) -> T | None:
    try:
        async with asyncio.timeout(LOOK_WAIT_S):  # `wait_for` of Python 3.11 may lose a cancellation
            return await work()
    except (TimeoutError, HarvesterError):
        return None
    except Exception:  # raised by Ray while a replica starts or stops; the next frame tries again
        log.debug("look_failed", exc_info=True)
        return None


def _jobs(now: JobsNow) -> str:
    """Active jobs and the newest ended ones, how many others there are, and the number of all jobs by owner."""
    views = [view.model_dump(mode="json", exclude=_LEFT_OUT) for view in now.views]
    return json.dumps({"jobs": views, "older": now.older, "owned": dict(now.owned)})


class OwnJobs:
    """Splits the jobs of a frame by owner, once for all viewers."""

    def __init__(self) -> None:
        self._frame = ""
        self._owned: dict[str, int] = {}
        self._views: dict[str, list[dict[str, Any]]] = {}
        self._texts: dict[str, str] = {}

    def of(self, frame: str, who: Identity) -> str:
        """What ``who`` is told of the text that `_jobs` made: an administrator all, others their own jobs."""
        if who.is_admin:
            return frame
        if frame != self._frame:
            self._split(frame)
        name = who.name or ""
        if name not in self._texts:
            own = self._views.get(name, [])
            self._texts[name] = json.dumps({"jobs": own, "older": self._owned.get(name, len(own)) - len(own)})
        return self._texts[name]

    def _split(self, frame: str) -> None:
        told = json.loads(frame)
        self._frame, self._owned, self._views, self._texts = frame, told["owned"], {}, {}
        for view in told["jobs"]:
            if view["owner"] is not None:
                self._views.setdefault(view["owner"], []).append(view)


def add_events(app: FastAPI, broadcaster: Broadcaster, known_s: float = KNOWN_S) -> None:
    """Add ``GET /events``: ``server``, ``replicas``, ``jobs`` and ``trouble``, first and whenever they change; with each frame ``look``.

    A stream ends at the first frame that comes ``known_s`` or more after the last look at its key, if that is revoked or expired.
    """

    own_jobs = OwnJobs()

    async def seat(who: Who) -> AsyncIterator[None]:
        with broadcaster.seat(who.counted_as):
            yield

    # Not in the OpenAPI document, which cannot say that an answer never ends.
    @app.get("/events", include_in_schema=False, response_class=EventSourceResponse, dependencies=[Depends(seat)])
    async def events(who: Who, request: Request) -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent(comment="harvester", retry=RECONNECT_MS)
        looked_s = time.monotonic()
        async for frame in broadcaster.frames():
            if time.monotonic() - looked_s >= known_s:
                looked_s = time.monotonic()
                if not is_known(request):
                    return
            for name, text in frame.items():
                yield ServerSentEvent(event=name, raw_data=own_jobs.of(text, who) if name == "jobs" else text)
