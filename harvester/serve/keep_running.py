"""Background loops that restart after an unexpected exception. If one ended, nothing would fail, but its work would silently stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("harvester.serve")

AGAIN_S = 5.0


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await ``run``. If it raises, log the exception and start it again after `AGAIN_S`, until cancelled. ``name``: for the log."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("loop_bug name=%s", name)
            await asyncio.sleep(AGAIN_S)
        else:
            return
