"""A replica: one vLLM engine that answers chat through its own OpenAI app and harvests jobs beside it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import generate_latest
from ray import serve

from harvester.config import ServeConfig
from harvester.engine.launch.defaults import gpu_share, gpus_of_replica
from harvester.engine.launch.logs import kept_logs
from harvester.engine.launch.models import ModelChoice, on_this_machine
from harvester.engine.processes import forked
from harvester.errors import StorageError
from harvester.logs import write_logs
from harvester.serve.access.gate import gate_of
from harvester.serve.access.routes import CHAT_ROUTES
from harvester.serve.access.wall import guard
from harvester.serve.deployments.actor import LedgerActor
from harvester.serve.deployments.placement import environment
from harvester.serve.deployments.scale.router import EXPECTED_S, routing
from harvester.serve.deployments.scale.scaling import REPLICA, Floor, scaling, tries
from harvester.serve.deployments.seam import keep_to_loopback, told_to_leave
from harvester.serve.deployments.slice_spans import spans_of
from harvester.serve.deployments.turns import turn_on_gpu
from harvester.serve.deployments.version import bound, digest_of
from harvester.serve.environment import use_haproxy
from harvester.serve.http.forwarding import add_forwarding
from harvester.serve.http.page import add_page
from harvester.serve.keep_running import keep_running
from harvester.serve.machine.cores import claim_part, on_own_cores
from harvester.serve.machine.room import cpus_of_replica
from harvester.serve.processes import lower_priority, mark_of
from harvester.serve.runtime import runtime_folder
from harvester.timers import USUAL_S, set_timer_slack
from harvester.traces import flush, tracer_of
from jobs.engine import EngineGone
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.storage.folder import StateFolder
from jobs.storage.place import state_folder


def _own_cores(config: ServeConfig, folder: StateFolder) -> AbstractContextManager[None]:
    """Binds CPU replicas that share this machine to their own cores. Those of a joined cluster may be anywhere, and are not bound."""
    if config.replicas.max == 1 or config.address is not None or sys.platform != "linux":
        return nullcontext()
    context, parts = serve.get_replica_context(), config.replicas.max
    runtime = runtime_folder(folder, mark_of(folder.root))
    return on_own_cores(claim_part(runtime, context.app_name, parts, otherwise=context.rank.rank), parts)


class Replica:
    """The Serve deployment. Serve checks its health every second and replaces it when it raises or dies.

    ``digest``: of its configuration and model, by which the jobs application knows replicas of its own deployment.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits an async constructor
        self, config: ServeConfig, choice: ModelChoice, state: str, ledger: str, cpu: bool, digest: str
    ) -> None:
        self._digest = digest
        lower_priority(whole=False)
        set_timer_slack(USUAL_S)  # the engine's processes inherit it: their waits are short
        folder = await asyncio.to_thread(state_folder, Path(state), config.storage)
        write_logs(config.logs, folder.logs, "replica")
        tracer = tracer_of(config.traces, "replica")  # sets environment variables for vLLM's processes
        forked.begin(sockets=os.environ.get("VLLM_RPC_BASE_PATH"))  # the server's own folder, where it is on this machine
        with kept_logs(), forked.uncollected():
            from harvester.engine.vllm import surface

            surface.require()  # before the imports below, which another version of vLLM may lack
            from harvester.engine.frontend.host import EngineHost
            from harvester.engine.launch.arguments import engine_arguments
            from harvester.engine.launch.profiles import profile_path
            from harvester.engine.shared.state import SharedState
            from harvester.engine.verify.kept import fitted, read

        keep_to_loopback()
        if config.address is not None:
            choice = await asyncio.to_thread(on_this_machine, choice)
        profile = profile_path(folder.root, choice.name, choice.path, config)
        if folder.mirror is not None:
            await asyncio.to_thread(folder.mirror.fetch_folder, profile.parent)
        config = fitted(config, read(profile))
        values = engine_arguments(
            config, choice.path, choice.name, cpu=cpu, embedded=choice.embedded, shared=SharedState.make().path, profile=profile
        )
        num_gpus = None if cpu else config.num_gpus
        async with turn_on_gpu(num_gpus):
            with kept_logs(), _own_cores(config, folder) if cpu else nullcontext():
                self._host = await EngineHost.start(values, config.service_tiers)
        slots, share = max(1, self._host.max_seqs - config.share.reserved_slots), gpu_share(num_gpus)
        self._runner = Runner(
            holder=f"replica-{uuid.uuid4().hex[:12]}@{socket.gethostname()}",
            ledger=LedgerActor(ledger, patience_s=float("inf")),
            engine=self._host.offline(choice.name, config.harvest.concurrency or 2 * slots, config.harvest.max_image_bytes, share),
            folder=folder,
            config=config.harvest,
            open_sink=open_parts,
            now_s=time.time,
            price=config.price,
            spans=spans_of(tracer),
            media_hosts=config.media_hosts,
        )
        self._config, self._folder = config, folder
        self._gate = gate_of(config, folder.keys, config.replicas.min, tracer)
        self._table = CHAT_ROUTES.with_routes(config.access.routes)
        self._profile = profile
        assert self._gate.meter is not None
        self._meter, self._usage_ledger = self._gate.meter, LedgerActor(ledger)
        self._floor = Floor(config.replicas, choice.name, LedgerActor(ledger))
        self._tasks = self._keep_telling(choice.name, LedgerActor(ledger))
        self._harvest = asyncio.create_task(self._runner.run())
        self._leaving = asyncio.create_task(self._leave())
        self._tasks.append(asyncio.create_task(self._measure(known=profile.is_file())))

    def _keep_telling(self, model: str, ledger: LedgerActor) -> list[asyncio.Task[None]]:
        """Start what exchanges usage, demand and the number of living replicas with the ledger."""
        beside: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "usage": partial(self._meter.run, self._usage_ledger),
            "floor": self._floor.run,
            "quotas": partial(self._gate.quotas.follow, ledger, model, self._runner.holder),
        }
        return [asyncio.create_task(keep_running(name, run)) for name, run in beside.items()]

    async def _leave(self) -> None:
        """Stop harvesting as soon as Serve stops this replica; its chats end meanwhile."""
        await told_to_leave()
        await self._runner.leave()

    async def _measure(self, *, known: bool) -> None:
        """At the first start of a model on a device: make the short profile, then verify the machine."""
        await self._host.profile_when_absent(known=known)
        await self._host.verify_when_absent(self._profile)
        await asyncio.to_thread(self._send_profile)

    def _send_profile(self) -> None:
        """Send the profile to the storage, for replicas on other machines. If that fails, each of those measures for itself."""
        mirror = self._folder.mirror
        if mirror is not None and self._profile.is_file():
            with suppress(StorageError):
                mirror.send_folder(self._profile.parent)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        add_page(self._host.app)
        add_forwarding(self._host.app, self._config, self._table)
        guard(self._host.app, self._table, self._gate)
        return self._host.app

    async def check_health(self) -> None:
        await self._host.check()
        if self._harvest.done() and not self._harvest.cancelled():
            await self._harvest  # raises why it ended

    async def stop_harvest(self) -> None:
        """Stop harvesting and give every lease back, because the whole server stops. The next one computes the rows in work again."""
        self._harvest.cancel()
        with suppress(asyncio.CancelledError, EngineGone):
            await self._harvest

    async def info(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "context_tokens": self._host.context_tokens,
            "max_seqs": self._host.max_seqs,
            "models": self._host.models(),
            "thinking": self._host.thinking.model_dump(),
            "gives": [one.value for one in self._host.gives],
            "max_images": self._host.max_images,
            "adapters": self._host.adapters(),
            "digest": self._digest,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Metrics for Serve's controller, read by `harvester.serve.deployments.scale.scaling.with_floor`."""
        return self._floor.stats()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Stats for Serve's proxies, sent twice a second, read by `ChatRouter`."""
        return {EXPECTED_S: self._host.expected_s()}

    async def now(self) -> dict[str, Any]:
        """This replica's state for the page: `harvester.engine.frontend.snapshot`, with its id."""
        return {"id": serve.get_replica_context().replica_id.unique_id, **self._host.now()}

    async def metrics(self) -> dict[str, str]:
        """This replica's `/metrics`, to be merged with those of the whole fleet."""
        context = serve.get_replica_context()
        text = await asyncio.to_thread(generate_latest)
        return {"replica": str(context.rank.rank), "id": context.replica_id.unique_id, "text": text.decode()}

    async def profile(self, seconds: float | None) -> dict[str, Any]:
        """Measure the engine; see `harvester.engine.launch.profiler`."""
        return {**await self._host.profile(seconds), "path": str(self._profile)}

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._leaving  # Serve waits `drain_s` for it, and for the chats before
        await self.stop_harvest()
        await self._meter.tell_last(self._usage_ledger)
        self._host.close()
        await asyncio.to_thread(flush)


def replica_app(config: ServeConfig, choice: ModelChoice, state: Path, ledger: str, *, cpu: bool) -> serve.Application:
    """The chat application. Serve's own limit on requests is lifted, because vLLM queues and refuses by itself."""
    options: dict[str, Any] = {"num_cpus": cpus_of_replica(config)}
    if not cpu:
        options["num_gpus"] = gpus_of_replica(config)
    deployment = serve.deployment(
        name=REPLICA,
        **scaling(config.replicas),
        max_ongoing_requests=100_000,
        request_router_config=routing(is_haproxy=use_haproxy(config)),
        max_constructor_retry_count=tries(config),
        ray_actor_options=options | {"runtime_env": environment(config, config.env)},
        health_check_period_s=1.0,
        health_check_timeout_s=60.0,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=config.drain_s,
    )(serve.ingress()(Replica))
    return bound(deployment, config, choice, str(state), ledger, cpu, beside=(digest_of(config, choice),), read=config.replicas.floors)
