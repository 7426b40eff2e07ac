"""Loops that must not end for a mistake nobody foresaw: without them nothing fails, and something is not done any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("harvester.serve")

AGAIN_S = 5.0


async def kept_up(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await ``run``; where it raises, log that and begin again, until cancelled. ``name``: of what it does, for the log."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("loop_bug name=%s", name)
            await asyncio.sleep(AGAIN_S)
        else:
            return
