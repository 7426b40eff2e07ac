"""Poll replicas and jobs once a second for all viewers of the page; nothing is polled while there is none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from harvester.errors import BusyError
from harvester.serve.keep_running import keep_running

Frame = dict[str, str]  # text of each event, by its name
TakeFrame = Callable[[], Awaitable[Frame]]

EVERY_S = 1.0
MAX_VIEWERS = 32
OF_ONE_KEY = 4  # a key has at most this part of the seats


class Broadcaster:
    """Used from one event loop. ``take_frame`` is called by one task, never twice at once; it raises nothing."""

    def __init__(self, take_frame: TakeFrame, every_s: float = EVERY_S, max_viewers: int = MAX_VIEWERS) -> None:
        self._take_frame = take_frame
        self._every_s = every_s
        self._max_viewers = max_viewers
        self._viewers = 0
        self._of_key = Counter[str]()
        self._polling: asyncio.Task[None] | None = None
        self._frame: Frame = {}
        self._news = asyncio.Condition()
        self._number = 0

    @property
    def is_polling(self) -> bool:
        return self._polling is not None

    @contextmanager
    def seat(self, key: str | None = None) -> Iterator[None]:
        """Hold a seat while watching, for the key of this name; None: no key. Raises `BusyError` if all are taken, or all of the key."""
        if key is not None and self._of_key[key] >= max(1, self._max_viewers // OF_ONE_KEY):
            raise BusyError(f"{self._of_key[key]} pages of this key are open, the most that it may have; close one")
        if self._viewers >= self._max_viewers:
            raise BusyError(f"{self._max_viewers} pages are open, the most that this server serves; close one")
        self._viewers += 1
        self._of_key.update([] if key is None else [key])
        try:
            if self._polling is None:
                self._polling = asyncio.create_task(keep_running("page", self._keep_polling))
            yield
        finally:
            self._viewers -= 1
            self._of_key.subtract([] if key is None else [key])
            self._of_key += Counter()  # drops the zeros
            if self._viewers == 0 and self._polling is not None:
                self._polling.cancel()
                self._polling, self._frame = None, {}

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield the events that are new to this viewer after each frame. A slow viewer misses frames and delays nobody."""
        told: Frame = {}
        seen = -1 if self._frame else self._number
        while True:
            async with self._news:
                await self._news.wait_for(lambda: self._number != seen)  # noqa: B023  # waits within this turn
                seen, frame = self._number, self._frame
            yield {name: text for name, text in frame.items() if told.get(name) != text}
            told = frame

    async def _keep_polling(self) -> None:
        while True:
            frame = await self._take_frame()
            async with self._news:
                self._frame = frame
                self._number += 1
                self._news.notify_all()
            await asyncio.sleep(self._every_s)
