"""The jobs application as a Serve deployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI
from ray import serve

from harvester.config import ServeConfig
from harvester.core import __version__
from harvester.engine.launch.models import ModelChoice
from harvester.errors import HarvesterError
from harvester.logs import write_logs
from harvester.serve.access.gate import gate_of
from harvester.serve.deployments.actor import LedgerActor
from harvester.serve.deployments.placement import application_options
from harvester.serve.deployments.scale.replicas import Replicas
from harvester.serve.deployments.scale.scaling import Scale, deadline_note
from harvester.serve.deployments.scale.waking import Waking
from harvester.serve.deployments.seam import keep_to_loopback
from harvester.serve.deployments.version import bound, digest_of
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.jobs.removal import keep_removing
from harvester.serve.http.live.broadcast import Broadcaster
from harvester.serve.http.live.events import FrameSource
from harvester.serve.http.live.history import History
from harvester.serve.http.live.history_api import keep_looking
from harvester.serve.http.metrics_api import Fleet
from harvester.serve.keep_running import keep_running
from harvester.serve.processes import MARK, lower_priority, mark_of
from harvester.traces import flush, tracer_of
from jobs.access.handle import make_key
from jobs.plan.planner import JobPlanner
from jobs.sql.pool import QueryPool
from jobs.sql.process import QueryProcesses
from jobs.storage.place import state_folder
from jobs.tasks.abilities import Abilities

REMEMBER_S = 1.0
EXPIRE_S = 5.0


class JobsApp:
    """Calls the ledger and the replicas; keeps a history of what the replicas reported in the state folder (`History`).

    ``digests``: of the replicas that were deployed with it, by model (`Replica`).
    """

    def __init__(
        self,
        config: ServeConfig,
        choice: ModelChoice,
        state: str,
        ledger: str,
        url: str,
        cpu: bool,
        digests: Mapping[str, str],
        pid: int | None,
    ) -> None:
        keep_to_loopback()
        lower_priority()
        folder = state_folder(Path(state), config.storage)
        write_logs(config.logs, folder.logs, "jobs")
        self._fixed: dict[str, Any] = {
            "version": __version__,
            "model": choice.name,
            "model_note": choice.note,
            "state": state,
            "url": url,
            "pid": pid,
            "price": None if config.price is None else config.price.model_dump(),
            "started_at_s": time.time(),
        }
        self._digests = digests
        self._known: dict[str, dict[str, Any]] = {}  # abilities by model, as a replica with that digest told them
        make_key(folder)
        self._replicas = Replicas(config.models)
        self._scale = Scale(config, folder.scale, cpu=cpu)
        noted = {choice.name: config} | {name: config.of(name) for name in config.models}
        notes = {name: note for name, one in noted.items() if (note := deadline_note(one, cpu=cpu)) is not None}
        actor = LedgerActor(ledger)
        queries = QueryPool(_processes(config, mark_of(folder.root)))
        queries.start()
        self._history = History(folder.history, config.slo.max_slowdown)
        self._beside: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "history": lambda: keep_looking(self._history, self._replicas.now),
            "removals": lambda: keep_removing(actor, folder, config.jobs.retention_days),
            "deadlines": lambda: keep_expiring(actor, EXPIRE_S),
        }
        sleeping = {name: name or choice.name for name in (None, *config.models) if self._scale.may_sleep(name)}
        waking = Waking(self._replicas.answered, actor.demand, sleeping)
        if sleeping:
            self._beside |= {"waking": waking.run, "abilities": self._remember}
        bounds = self._fixed | self._scale.bounds()
        self._app = jobs_api(
            actor,
            JobPlanner(folder, config.harvest, choice.name, config.sources, config.secrets, config.models, notes),
            self._info,
            profile=self._replicas.profile,
            broadcaster=Broadcaster(FrameSource(self._replicas.now, actor, bounds, waking.is_asleep)),
            gate=gate_of(config, folder.keys, tracer=tracer_of(config.traces, "jobs")),
            queries=queries,
            fleet=Fleet(actor, self._replicas.metrics, choice.name, partial(self._scale.all_wanted, choice.name)),
            history=self._history,
            scale=self._rescale,
            sleepers=waking,
        )

    async def __serve_build_asgi_app__(self) -> FastAPI:
        self._tasks = [asyncio.create_task(keep_running(name, run)) for name, run in self._beside.items()]
        return self._app

    async def _rescale(self, number: int, model: str | None) -> dict[str, Any]:
        model = None if model == self._fixed["model"] else model
        return {"replicas": number, "was": await self._scale(number, model)}

    async def reset_scale(self) -> None:
        """Called by a server once it has deployed in a joined cluster: `Scale.reset`."""
        await self._scale.reset()

    async def _remember(self) -> None:
        """Ask what the models can do while a replica runs: a later question would load a model that sleeps."""
        while unknown := self._unknown():
            with suppress(Exception):  # of Ray, while a replica starts or goes
                await self._replicas.now()  # raises where there is none
                await self._ask(unknown)
            await asyncio.sleep(REMEMBER_S)

    async def _info(self) -> dict[str, Any]:
        able, first = await self._ask(self._unknown()) | self._known, self._fixed["model"]
        further = {name: able.get(name) for name in self._digests if name != first}
        return {**self._fixed, **self._scale.bounds(), **able[first], "models": further}

    def _unknown(self) -> set[str]:
        return self._digests.keys() - self._known.keys()

    async def _ask(self, models: Set[str]) -> dict[str, dict[str, Any]]:
        """Abilities of ``models`` by name, as a replica tells them. Raises `NoReplicaError` for the first; leaves others out.

        Those of an earlier deployment, which answers while its replicas are replaced, are not remembered.
        """
        first = self._fixed["model"]
        told = await self._replicas.further(models - {first})
        if first in models:
            told.append({**await self._replicas.info(), "model": first})
        self._known |= {one["model"]: _able(one) for one in told if one.get("digest") == self._digests[one["model"]]}
        return {one["model"]: _able(one) for one in told}

    def __del__(self) -> None:
        flush()


class Expires(Protocol):
    async def expire(self) -> None: ...


async def keep_expiring(ledger: Expires, every_s: float) -> None:
    """Let jobs end at their deadline, until cancelled. Calls of replicas do too, but there may be no replica."""
    while True:
        await asyncio.sleep(every_s)
        with suppress(HarvesterError):  # the ledger is away, and says so to all that ask
            await ledger.expire()


def _processes(config: ServeConfig, mark: str) -> QueryProcesses:
    """The next server ends processes with its mark. In a joined cluster the application outlives its server, so its own have none."""
    return QueryProcesses({MARK: mark}, owner=mark) if config.address is None else QueryProcesses()


def _able(info: dict[str, Any]) -> dict[str, Any]:
    return {name: info.get(name) for name in Abilities.model_fields}


def jobs_app(
    config: ServeConfig,
    choice: ModelChoice,
    state: Path,
    ledger: str,
    url: str,
    further: Mapping[str, ModelChoice],
    cpu: bool,
    pid: int | None,
) -> serve.Application:
    """The jobs application. ``further``: the models of ``config.models``, by name."""
    deployment = serve.deployment(
        name="jobs",
        max_ongoing_requests=1000,
        ray_actor_options=application_options(config),
        health_check_period_s=1.0,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=1.0,
    )(serve.ingress()(JobsApp))
    # In a joined cluster the application outlives the process that deployed it: it gets no ``pid``.
    beside = (pid if config.address is None else None,)
    read = {"": config.replicas} | {name: one.replicas for name, one in config.models.items()}
    digests = {choice.name: digest_of(config.of(None), choice)} | {name: digest_of(config.of(name), one) for name, one in further.items()}
    return bound(deployment, config, choice, str(state), ledger, url, cpu, digests, beside=beside, read=read)
