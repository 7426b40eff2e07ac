"""Threads for planning jobs. Slow sources, and copies that take minutes, do not block the threads for everything else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from harvester.errors import BusyError
from jobs.threads import in_thread

AT_ONCE = 4
MAX_IN_LINE = 60

T = TypeVar("T")


class Planning:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="plan")
        self._asked = 0  # being planned, or waiting

    async def run(self, work: Callable[[], T], unmake: Callable[[T], object] | None = None) -> T:
        """Result of ``work``. ``unmake``: called with it if the client hangs up meanwhile, see `jobs.threads.in_thread`.

        Raises `BusyError` if too many wait already.
        """
        if self._asked >= AT_ONCE + MAX_IN_LINE:
            raise BusyError(f"{self._asked} jobs are being planned or wait for it, the most that this server takes; try again in a moment")
        self._asked += 1
        try:
            return await in_thread(self._threads, work, unmake)
        finally:
            self._asked -= 1
