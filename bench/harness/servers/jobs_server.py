"""The jobs application and one replica with a scripted engine in one process: ``python -m bench.harness.servers.jobs_server``.

Without Ray and without chat, it starts in a second. Clients cannot tell it from a server otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from harvester.core import __version__
from harvester.ports import free_port
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.access.handle import make_key
from jobs.config import HarvestConfig, SourcesConfig
from jobs.engine import Prompt
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.run.runner import Runner
from jobs.storage.folder import StateFolder
from jobs.storage.parts import results_of
from jobs.testing import DirectLedger, ScriptedEngine

MODEL = "scripted"
STARTED_S = 60.0
HARVEST = HarvestConfig(idle_poll_s=0.02, min_free_bytes=1 << 20)


def echo(prompt: Prompt) -> str:
    """An answer of the shape that is asked for: the first label, a value for each property, else the prompt's last words."""
    if prompt.choices:
        return prompt.choices[0]
    if prompt.json_schema:
        return json.dumps({name: _value(kind) for name, kind in prompt.json_schema.get("properties", {}).items()})
    return " ".join(prompt.messages[-1]["content"].split()[-3:])


def _value(schema: dict[str, Any]) -> object:
    return {"integer": 1, "number": 0.5, "boolean": True, "array": [], "string": "some"}.get(str(schema.get("type")))


class JobsServer:
    """``state``: its folder. ``told_state``: the path that it reports instead, as if it ran on another machine. Use `serving`."""

    def __init__(
        self,
        state: Path,
        port: int,
        *,
        harvest: HarvestConfig = HARVEST,
        answer: Callable[[Prompt], str] = echo,
        sources: SourcesConfig | None = None,
        told_state: Path | None = None,
    ) -> None:
        self.folder = StateFolder(state)
        self.folder.prepare()
        make_key(self.folder)
        self.url = f"http://127.0.0.1:{port}"
        self._answer, self._harvest = answer, harvest
        self._told_state = str(told_state or state)
        self.ledger = Ledger(self.folder.ledger, self.folder.jobs, lease_s=30.0, now_s=time.time(), new_server=True)
        client = DirectLedger(self.ledger, time.time)
        planner = JobPlanner(self.folder, harvest, MODEL, sources or SourcesConfig())
        self.app: ASGIApp = Starlette(routes=[Mount("/api", jobs_api(client, planner, self._info))])
        self._client = client

    async def _info(self) -> dict[str, Any]:
        return {"version": __version__, "model": MODEL, "context_tokens": 8192, "state": self._told_state, "url": self.url}

    @asynccontextmanager
    async def _harvesting(self) -> AsyncIterator[None]:
        engine = ScriptedEngine(MODEL, answer=self._answer)
        runner = Runner("one", self._client, engine, self.folder, self._harvest, results_of, time.time)
        work = asyncio.create_task(runner.run())
        try:
            yield
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            self.ledger.close()

    async def run(self, server: uvicorn.Server) -> None:
        async with self._harvesting():
            await server.serve()


@contextmanager
def serving(state: Path, wrapped: Callable[[ASGIApp], ASGIApp] = lambda app: app, **options: Any) -> Iterator[JobsServer]:
    """A server in a thread of this process, for the block."""
    port = free_port()
    jobs = JobsServer(state, port, **options)
    config = uvicorn.Config(wrapped(jobs.app), port=port, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(jobs.run(server)), name="jobs-server")
    thread.start()
    try:
        end_s = time.monotonic() + STARTED_S
        while not server.started:
            assert thread.is_alive(), "the jobs server did not start"
            assert time.monotonic() < end_s, "the jobs server was not ready in time"
            time.sleep(0.01)
        yield jobs
    finally:
        server.should_exit = True
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    jobs = JobsServer(given.state, given.port)
    server = uvicorn.Server(uvicorn.Config(jobs.app, port=given.port, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    asyncio.run(jobs.run(server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
