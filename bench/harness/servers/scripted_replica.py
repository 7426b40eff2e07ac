"""The chat application with a scripted engine in vLLM's place: everything around the engine is the real thing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from prometheus_client import generate_latest
from ray import serve

from bench.harness.servers.server import FAILS_ONCE
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice, on_this_machine
from harvester.errors import EngineError
from harvester.serve.access.gate import gate_of
from harvester.serve.access.routes import CHAT_ROUTES
from harvester.serve.access.wall import guard
from harvester.serve.deployments.actor import LedgerActor
from harvester.serve.deployments.placement import environment
from harvester.serve.deployments.scale.router import EXPECTED_S, routing
from harvester.serve.deployments.scale.scaling import REPLICA, Floor, scaling, tries
from harvester.serve.deployments.seam import keep_to_loopback, told_to_leave
from harvester.serve.deployments.version import bound, digest_of
from harvester.serve.environment import use_haproxy
from harvester.serve.http.forwarding import add_forwarding
from harvester.serve.http.page import add_page
from jobs.engine import ApiCall, EngineGone, Prompt
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.storage.place import state_folder
from jobs.testing import ScriptedEngine, last_content

CONTEXT_TOKENS = 8192
CONCURRENCY = 64
TOKEN_S = 0.1  # of a scripted stream
ROW_S = 0.1  # expected wait of a chat, as reported, for each row in work


def last_word(prompt: Prompt) -> str:
    """The script: `bench.harness.load.table.tail_of` the row, so that an answer in the wrong row shows."""
    return prompt.messages[-1]["content"].rpartition(" ")[2]


def last_word_asked(call: ApiCall) -> str:
    return last_content(call).rpartition(" ")[2]


async def chat(body: dict[str, Any]) -> StreamingResponse:
    headers = {"x-replica": str(os.getpid())}
    return StreamingResponse(_tokens(int(body["max_tokens"])), media_type="text/event-stream", headers=headers)


async def _tokens(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': f'{number} '}}]})}\n\n"
        await asyncio.sleep(TOKEN_S)
    yield "data: [DONE]\n\n"


class ScriptedReplica:
    """`harvester.serve.deployments.replica.Replica` without an engine: the same runner, ledger client and sink.

    A chat is answered with ``max_tokens`` tokens as a stream, one each `TOKEN_S`.

    ``delay_s``: of each completion; `CONCURRENCY` run at once. A constructor that finds the file of `FAILS_ONCE` removes it and fails.
    """

    def __init__(self, config: ServeConfig, choice: ModelChoice, state: str, ledger: str, delay_s: float, digest: str) -> None:
        self._digest = digest
        keep_to_loopback()
        marker = os.environ.get(FAILS_ONCE)
        if marker is not None and Path(marker).exists():
            Path(marker).unlink()
            raise EngineError(f"this replica was told to fail once, by {marker}")
        if config.address is not None:
            choice = on_this_machine(choice)
        folder = state_folder(Path(state), config.storage)
        self._engine = ScriptedEngine(
            choice.name, CONTEXT_TOKENS, config.harvest.concurrency or CONCURRENCY, last_word, delay_s, reply=last_word_asked
        )
        self._runner = Runner(
            holder=f"replica-{uuid.uuid4().hex[:12]}@{socket.gethostname()}",
            ledger=LedgerActor(ledger, patience_s=float("inf")),
            engine=self._engine,
            folder=folder,
            config=config.harvest,
            open_sink=open_parts,
            now_s=time.time,
        )
        self._app = FastAPI()
        self._app.post("/v1/chat/completions")(chat)
        add_page(self._app)
        add_forwarding(self._app, config, CHAT_ROUTES)
        guard(self._app, CHAT_ROUTES, gate_of(config, folder.keys))
        self._floor = Floor(config.replicas, choice.name, LedgerActor(ledger))
        self._harvest: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        self._harvest = asyncio.create_task(self._runner.run())
        self._leaving = asyncio.create_task(self._leave())
        self._asking = asyncio.create_task(self._floor.run())
        return self._app

    async def _leave(self) -> None:
        await told_to_leave()
        await self._runner.leave()

    async def check_health(self) -> None:
        if self._harvest is not None and self._harvest.done() and not self._harvest.cancelled():
            await self._harvest  # raises why it ended

    async def stop_harvest(self) -> None:
        if self._harvest is not None:
            self._harvest.cancel()
            with suppress(asyncio.CancelledError, EngineGone):
                await self._harvest

    async def info(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "context_tokens": CONTEXT_TOKENS, "max_seqs": CONCURRENCY, "digest": self._digest}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return self._floor.stats()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Reports the running rows of jobs as if they were a step that a chat must wait for."""
        return {EXPECTED_S: self._engine.running * ROW_S}

    async def now(self) -> dict[str, Any]:
        """Its id alone: there is no engine to report on."""
        return {"id": serve.get_replica_context().replica_id.unique_id}

    async def metrics(self) -> dict[str, str]:
        context = serve.get_replica_context()
        return {"replica": str(context.rank.rank), "id": context.replica_id.unique_id, "text": generate_latest().decode()}

    async def __del__(self) -> None:
        if self._leaving is not None:
            await self._leaving
            await self.stop_harvest()


def scripted_app(config: ServeConfig, choice: ModelChoice, state: Path, ledger: str, delay_s: float = 0.0) -> serve.Application:
    """A `harvester.serve.cluster.ChatApp`."""
    deployment = serve.deployment(
        name=REPLICA,
        **scaling(config.replicas),
        max_ongoing_requests=100_000,
        request_router_config=routing(is_haproxy=use_haproxy(config)),
        max_constructor_retry_count=tries(config),
        ray_actor_options={"num_cpus": config.num_cpus or 1, "runtime_env": environment(config, config.env)},
        health_check_period_s=1.0,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=config.drain_s,
    )(serve.ingress()(ScriptedReplica))
    return bound(deployment, config, choice, str(state), ledger, delay_s, beside=(digest_of(config, choice),), read=config.replicas.floors)
