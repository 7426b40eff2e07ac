"""``GET /history``, and the task that looks at the replicas for it, whether or not somebody watches."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from fastapi import FastAPI

from harvester.serve.http.live.events import LOOK_WAIT_S, Replicas
from harvester.serve.http.live.history import LOOK_S, History, Span

log = logging.getLogger("harvester.history")


async def keep_looking(history: History, replicas: Replicas) -> None:
    """Take a look every `LOOK_S`, until cancelled. Where no replica answers, or the disk is full, that step stays unknown."""
    while True:
        try:
            async with asyncio.timeout(LOOK_WAIT_S):
                history.take(await replicas(), time.time())
        except Exception:  # of Ray, while a replica starts or goes
            log.debug("look_failed", exc_info=True)
        await asyncio.sleep(LOOK_S - time.time() % LOOK_S)


def add_history(app: FastAPI, history: History) -> None:
    @app.get("/history")
    async def told(span: Span = "5m") -> dict[str, Any]:
        return history.answer_for(span, time.time())
