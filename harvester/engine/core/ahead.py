"""The next step as it will be if nothing happens before it: worked out while the last one runs, so that the workers wait less."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm.v1.request import Request

from harvester.engine.core import compat
from harvester.engine.core.queue import OfflineRequests, extra_of
from harvester.engine.shared.settings import NOTHING, Settings, Slo
from harvester.policy.step.batch import Batch, batch_of
from harvester.policy.view import Plan, Running, View


@dataclass(frozen=True, slots=True)
class Planned:
    """A step that is planned and not yet applied. ``ranks``: place of each online request in their order."""

    view: View
    plan: Plan
    ranks: Mapping[str, int]


class PlanAhead:
    """``block_tokens`` of a KV block, ``max_tokens`` of any step."""

    def __init__(self, settings: Settings, jobs: OfflineRequests, block_tokens: int, max_tokens: int) -> None:
        self._settings = settings
        self._jobs = jobs
        self._bounds = block_tokens, max_tokens
        self._seen: dict[str, Running] = {}
        self._all: tuple[list[Running], Batch] | None = None  # where those seen are all that run
        self._next: Planned | None = None

    def promise(self, request: Request) -> Slo:
        return NOTHING if request.request_id in self._jobs else self._settings.promise(extra_of(request))

    def look(self, running: Iterable[Request]) -> bool:
        """At what the running requests will be. Returns whether no online prompt is among them.

        Those are looked at when they are due: their rank, and how much time is left to them, is told then.
        """
        shift_s = time.monotonic() - time.time()
        rows = {request.request_id: self._row(request, {}, shift_s) for request in running}
        self._seen = {name: row for name, row in rows.items() if row.offline or (row.step_tokens <= 1 and row.decoding)}
        if len(self._seen) < len(rows):
            self._all = None
            return False
        whole = list(rows.values())
        self._all = whole, batch_of(whole)
        return True

    def rows(self, running: Iterable[Request], ranks: Mapping[str, int], now_s: float) -> tuple[list[Running], Batch | None]:
        """The running requests as the policy sees them, and what they are in the step where that is known already."""
        if self._all is not None:
            return self._all
        return self._fresh(running, ranks, now_s), None

    def _fresh(self, running: Iterable[Request], ranks: Mapping[str, int], now_s: float) -> list[Running]:
        return [self._seen.get(request.request_id) or self._row(request, ranks, now_s - time.time()) for request in running]

    def _row(self, request: Request, ranks: Mapping[str, int], shift_s: float) -> Running:
        name = request.request_id
        return compat.running(request, name in self._jobs, *self._bounds, self.promise(request), ranks.get(name, 0), shift_s)

    def expect(self, planned: Planned) -> None:
        """This is the next step, unless one of the calls below comes first."""
        self._next = planned

    def take(self) -> Planned | None:
        """The next step if it is as expected."""
        planned, self._next = self._next, None
        return planned

    def came(self) -> None:
        """Another request."""
        self._next = None

    def left(self, name: str) -> None:
        """This one has ended or lost its KV."""
        self._next = self._all = None
        self._seen.pop(name, None)

    def clear(self) -> None:
        """No step came out as planned."""
        self._next = self._all = None
        self._seen.clear()
