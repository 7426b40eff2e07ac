"""How a replica calls the ledger while something fails: a call may fail without harm (`tell`), or ends before a cancellation goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from connectors.errors import StorageError
from jobs.errors import NotFoundError

log = logging.getLogger("harvester.runner")


async def tell(call: Awaitable[object]) -> None:
    """Make a call that the ledger can do without: a lease that is not released expires, and an error that fails a job comes again."""
    try:
        await call
    except (StorageError, NotFoundError) as error:  # not found: the job was removed meanwhile
        log.warning("ledger_storage %s", error.message)


async def despite_cancellation(call: Coroutine[Any, Any, object], patience_s: float) -> None:
    """Wait until ``call`` has ended. A cancellation is raised only then, or ``patience_s`` after it came."""
    task, is_cancelled, end_s = asyncio.ensure_future(call), False, None
    loop = asyncio.get_running_loop()
    while not task.done() and (end_s is None or loop.time() < end_s):
        try:
            await asyncio.wait([task], timeout=None if end_s is None else end_s - loop.time())
        except asyncio.CancelledError:
            is_cancelled = True
            end_s = end_s or loop.time() + patience_s
    if not is_cancelled:
        await task
        return
    if task.done() and not task.cancelled():
        task.exception()  # marks the exception as retrieved
    task.cancel()  # no effect on a task that has ended
    raise asyncio.CancelledError
