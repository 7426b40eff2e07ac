"""Models without replicas: the next chat, or a job with rows to do, has Ray Serve start one (docs/design/0068)."""

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

LOAD_S = 30.0  # that a model is expected to take before one has been loaded here
SHORTEST_S = 2.0  # an answer sooner than this came from a replica that was there
AGAIN_S = 5.0  # to wait for a model that takes longer than the last time, or that did not start

Answered = Callable[[str | None], Awaitable[object]]
AskedFor = Callable[[str], Awaitable[Demand]]


class Waking:
    """Of the jobs application. ``answered`` returns once a replica of the model has: Serve starts one for a call that waits.

    ``demand``: what the jobs of a model ask for. ``sleeping``: of the models that may have no replica, what their jobs call them, by what
    the applications do (None: the first).
    """

    def __init__(self, answered: Answered, demand: AskedFor, sleeping: Mapping[str | None, str]) -> None:
        self._answered = answered
        self._demand = demand
        self._names = dict(sleeping)
        self._calls: dict[str | None, tuple[asyncio.Task[None], float]] = {}
        self._took_s: dict[str | None, float] = {}

    def wake(self, model: str | None) -> float:
        """Have a replica of ``model`` started, unless that is under way. Returns the seconds until it probably answers."""
        if model not in self._names:
            return AGAIN_S
        task, began_s = self._calls.get(model, (None, 0.0))
        if task is None or task.done():
            began_s = time.monotonic()
            self._calls[model] = asyncio.create_task(self._call(model, began_s)), began_s
        return max(AGAIN_S, self._took_s.get(model, LOAD_S) - (time.monotonic() - began_s))

    def is_asleep(self) -> bool:
        """Whether all may have no replica, and none is being started."""
        return bool(self._names) and all(task.done() for task, _ in self._calls.values())

    async def run(self) -> None:
        """For jobs: ask every `ASK_S` whether there are rows to do. A model that is there only answers."""
        while self._names:
            for model, name in self._names.items():
                with suppress(HarvesterError):
                    if (await self._demand(name)).has_work:
                        self.wake(model)
            await asyncio.sleep(ASK_S)

    async def _call(self, model: str | None, began_s: float) -> None:
        try:
            await self._answered(model)
        except Exception:  # of Ray, of many kinds: the next chat or question asks again
            log.warning("wake_failed model=%s", model, exc_info=True)
            return
        took_s = time.monotonic() - began_s
        if took_s >= SHORTEST_S:
            self._took_s[model] = took_s
