"""The page and its routes over real HTTP, in a thread of this process: without Ray, and with replicas that say what a test wants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI

from harvester.ports import free_port
from harvester.serve.access.gate import Gate
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.live.broadcast import Broadcaster
from harvester.serve.http.live.events import FrameSource
from harvester.serve.http.live.history import History
from harvester.serve.http.page import add_page
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger

INFO = {"version": "0.1.0", "model": "tiny", "context_tokens": 512, "state": "/state", "url": "http://127.0.0.1"}
EVERY_S = 0.1  # between two looks
CALL_WAIT_S = 30.0

T = TypeVar("T")


class PageServer:
    """Started by ``with``. The ledger belongs to the server's thread: use it through `ask`."""

    def __init__(self, root: Path, gate: Gate | None = None) -> None:
        self.replicas: list[dict[str, Any]] = []
        folder = StateFolder(root / "state")
        folder.prepare()
        self._ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=3600.0, now_s=time.time(), new_server=True)
        self._history = History(root / "history", max_slowdown=1.2)
        client = DirectLedger(self._ledger, time.time)
        app = FastAPI()
        add_page(app)
        broadcaster = Broadcaster(FrameSource(self._told, client, INFO), every_s=EVERY_S)
        planner = JobPlanner(folder, HarvestConfig(), "tiny")
        app.mount("/api", jobs_api(client, planner, self._info, broadcaster=broadcaster, gate=gate, history=self._history))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> PageServer:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._history.close()
        self._ledger.close()

    def ask(self, work: Callable[[Ledger], T]) -> T:
        """What ``work`` returns of the ledger."""

        async def asked() -> T:
            return work(self._ledger)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(CALL_WAIT_S)

    def remember(self, told: dict[str, Any], at_s: float) -> None:
        """Add a look at one replica to the page's history."""
        self._history.take([told], at_s)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve()

    async def _told(self) -> list[dict[str, Any]]:
        return self.replicas

    async def _info(self) -> dict[str, Any]:
        return INFO
