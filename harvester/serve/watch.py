"""One look a second at replicas and jobs, shared by all viewers; none while nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from harvester.errors import BusyError

Frame = dict[str, str]  # text of each event, by its name
Look = Callable[[], Awaitable[Frame]]

EVERY_S = 1.0
MOST_VIEWERS = 32


class Watch:
    """Used from one event loop. ``look`` is called by one task, never twice at once; it raises nothing."""

    def __init__(self, look: Look, every_s: float = EVERY_S, most_viewers: int = MOST_VIEWERS) -> None:
        self._look = look
        self._every_s = every_s
        self._most = most_viewers
        self._viewers = 0
        self._looking: asyncio.Task[None] | None = None
        self._frame: Frame = {}
        self._news = asyncio.Condition()
        self._number = 0

    @property
    def is_looking(self) -> bool:
        return self._looking is not None

    @contextmanager
    def seat(self) -> Iterator[None]:
        """Hold a seat while watching. Raises `BusyError` if all are taken."""
        if self._viewers >= self._most:
            raise BusyError(f"{self._most} pages are open, the most that this server serves; close one")
        self._viewers += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._keep_looking())
            yield
        finally:
            self._viewers -= 1
            if self._viewers == 0 and self._looking is not None:
                self._looking.cancel()
                self._looking, self._frame = None, {}

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield the events that are new to this viewer after each look. A slow viewer misses looks and delays nobody."""
        told: Frame = {}
        seen = -1 if self._frame else self._number
        while True:
            async with self._news:
                await self._news.wait_for(lambda: self._number != seen)  # noqa: B023  # waits within this turn
                seen, frame = self._number, self._frame
            yield {name: text for name, text in frame.items() if told.get(name) != text}
            told = frame

    async def _keep_looking(self) -> None:
        while True:
            frame = await self._look()
            async with self._news:
                self._frame = frame
                self._number += 1
                self._news.notify_all()
            await asyncio.sleep(self._every_s)
