"""Work that goes on to its end where the client that asked for it hangs up: the server cancels what answers a request then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_going: set[asyncio.Task[Any]] = set()  # the event loop alone would let go of them


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    _going.add(task)
    task.add_done_callback(_going.discard)
    return await asyncio.shield(task)
