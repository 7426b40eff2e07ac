"""Finish work even if the client hangs up, upon which the server cancels the task that answers the request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_going: set[asyncio.Task[Any]] = set()  # the event loop itself keeps only weak references


async def despite_disconnect(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    _going.add(task)
    task.add_done_callback(_going.discard)
    return await asyncio.shield(task)
