"""Threads for planning jobs. Slow sources, and copies that take minutes, do not block the threads for everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from harvester.errors import BusyError
from jobs.threads import FairThreads

AT_ONCE = 4
MAX_IN_LINE = 60
KEY_AT_ONCE = 2  # so that no key holds all threads: a query may take an hour, and goes on if its client hangs up
KEY_IN_LINE = 30

T = TypeVar("T")


class Planning:
    def __init__(self) -> None:
        self._threads = FairThreads("plan", AT_ONCE, KEY_AT_ONCE)
        self._asked: Counter[str | None] = Counter()  # being planned, or waiting

    async def run(self, key: str | None, work: Callable[[], T], unmake: Callable[[T], object] | None = None) -> T:
        """Result of ``work`` for the API key of that name. ``unmake``: called with it if the client hangs up, see `jobs.threads.in_thread`.

        Raises `BusyError` if too many wait already, of all keys or of this one. A server without keys (None) has the first limit alone.
        """
        if self._asked.total() >= AT_ONCE + MAX_IN_LINE:
            raise _busy(f"{self._asked.total()} jobs", "this server takes")
        if key is not None and self._asked[key] >= KEY_AT_ONCE + KEY_IN_LINE:
            raise _busy(f"{self._asked[key]} jobs of this API key", "this server takes of one")
        self._asked[key] += 1
        try:
            return await self._threads.run(key, work, unmake)
        finally:
            self._asked[key] -= 1
            if not self._asked[key]:
                del self._asked[key]


def _busy(what: str, whose: str) -> BusyError:
    return BusyError(f"{what} are being planned or wait for it, the most that {whose}; try again in a moment")
