"""Models without replicas: the next chat, or a job with rows to do, makes Ray Serve start one (docs/design/0068)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from harvester.errors import HarvesterError
from harvester.serve.deployments.scale.scaling import ASK_S
from jobs.hint import Demand

log = logging.getLogger("harvester.waking")

LOAD_S = 30.0  # expected load time of a model until one has been measured here
SHORTEST_S = 2.0  # an answer sooner than this came from a replica that was there
AGAIN_S = 5.0  # minimum wait, for a model that loads more slowly than the last time or did not start

Answered = Callable[[str | None], Awaitable[object]]
AskedFor = Callable[[str], Awaitable[Demand]]


class Waking:
    """Runs in the jobs application. ``answered`` returns once a replica of the model answers: Serve starts one for a waiting call.

    ``demand``: what the jobs of a model need. ``sleeping``: maps the application name (None: the first) of each model that may
    have no replica to its name in jobs.
    """

    def __init__(self, answered: Answered, demand: AskedFor, sleeping: Mapping[str | None, str]) -> None:
        self._answered = answered
        self._demand = demand
        self._names = dict(sleeping)
        self._calls: dict[str | None, tuple[asyncio.Task[None], float]] = {}
        self._took_s: dict[str | None, float] = {}

    def may_sleep(self, model: str | None) -> bool:
        """Whether it may have no replica."""
        return model in self._names

    def wake(self, model: str | None) -> float:
        """Start a replica of ``model``, unless one is being started. Returns the seconds until it probably answers."""
        if model not in self._names:
            return AGAIN_S
        task, began_s = self._calls.get(model, (None, 0.0))
        if task is None or task.done():
            began_s = time.monotonic()
            self._calls[model] = asyncio.create_task(self._call(model, began_s)), began_s
        return max(AGAIN_S, self._took_s.get(model, LOAD_S) - (time.monotonic() - began_s))

    def is_asleep(self) -> bool:
        """Whether the first model may have no replica, and none is being started."""
        return None in self._names and all(task.done() for task, _ in self._calls.values())

    async def run(self) -> None:
        """Every `ASK_S`, wake the models whose jobs have rows to do. A model that is loaded just answers."""
        while self._names:
            for model, name in self._names.items():
                with suppress(HarvesterError):
                    if (await self._demand(name)).has_work:
                        self.wake(model)
            await asyncio.sleep(ASK_S)

    async def _call(self, model: str | None, began_s: float) -> None:
        try:
            await self._answered(model)
        except Exception:  # raised by Ray, in many kinds: the next chat or look tries again
            log.warning("wake_failed model=%s", model, exc_info=True)
            return
        took_s = time.monotonic() - began_s
        if took_s >= SHORTEST_S:
            self._took_s[model] = took_s
