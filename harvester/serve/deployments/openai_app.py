"""Files and batches as Serve applications. Each has its own prefix; the chat application has the rest of ``/v1``."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve

from connectors.errors import StorageError
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.logs import write_logs
from harvester.serve.access.gate import gate_of
from harvester.serve.deployments.actor import LedgerActor
from harvester.serve.deployments.placement import application_options
from harvester.serve.deployments.scale.replicas import Replicas
from harvester.serve.deployments.seam import keep_to_loopback
from harvester.serve.deployments.version import bound
from harvester.serve.http.jobs.intake import Intake
from harvester.serve.openai.api import openai_api
from harvester.serve.processes import lower_priority
from harvester.timers import USUAL_S, set_timer_slack
from harvester.traces import flush, tracer_of
from jobs.batches.controller import BatchController
from jobs.batches.files import FileStore
from jobs.batches.plan import BatchPlanner
from jobs.batches.store import BatchStore
from jobs.storage.place import state_folder
from jobs.threads import with_storage

log = logging.getLogger("harvester.files")
PREFIXES = {"files": "/v1/files", "batches": "/v1/batches"}  # by the application's name
SWEEP_S = 600.0
SWITCH_S = 0.0005  # thread switch interval: with Python's 5 ms an answer takes 0.2 s while a thread reads an input file


class FilesApp:
    """``/v1/files``, in a process of its own, so that an upload slows nothing else."""

    def __init__(self, config: ServeConfig, state: str) -> None:
        keep_to_loopback()
        lower_priority()
        folder = state_folder(Path(state), config.storage)
        write_logs(config.logs, folder.logs, "files")
        self._files = FileStore(folder.files, time.time, folder.mirror)
        self._app = openai_api(
            self._files,
            None,
            max_bytes=config.batches.max_file_bytes,
            gate=gate_of(config, folder.keys, tracer=tracer_of(config.traces, "files")),
            intake=Intake(self._files, folder, config.harvest.min_free_bytes),
        )
        self._sweeping: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        self._sweeping = asyncio.create_task(self._sweep())
        return self._app

    async def _sweep(self) -> None:
        while True:
            try:
                await with_storage(self._files.sweep)
            except StorageError as error:  # the next time tries again
                log.warning("files_not_swept %s", error.message)
            await asyncio.sleep(SWEEP_S)

    async def check_health(self) -> None:
        if self._sweeping is not None and self._sweeping.done():
            await self._sweeping  # raises why it ended

    def __del__(self) -> None:
        flush()


class BatchesApp:
    """``/v1/batches`` and the controller of batches. Holds no state: a new one continues from the records and the ledger."""

    def __init__(self, config: ServeConfig, choice: ModelChoice, state: str, ledger: str) -> None:
        keep_to_loopback()
        lower_priority()
        sys.setswitchinterval(SWITCH_S)
        folder = state_folder(Path(state), config.storage)
        write_logs(config.logs, folder.logs, "batches")
        files = FileStore(folder.files, time.time, folder.mirror)
        planner = BatchPlanner(folder, files, config.batches, config.harvest, choice.name, config.media_hosts, config.models)
        self._model = choice.name
        self._replicas = Replicas()
        self._further = tuple(config.models)
        store = BatchStore(folder.batches, folder.mirror)
        self._controller = BatchController(LedgerActor(ledger), store, files, planner, folder, self._models, time.time)
        self._app = openai_api(None, self._controller, gate=gate_of(config, folder.keys, tracer=tracer_of(config.traces, "batches")))
        self._keeping: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        set_timer_slack(USUAL_S)  # inherited by the threads that read input files, which sleep briefly
        self._keeping = asyncio.create_task(self._controller.run())
        return self._app

    async def _models(self) -> Collection[str]:
        """Names that a replica answers to. Raises `NoReplicaError` while none is there."""
        info = await self._replicas.info()
        return (*info.get("models", (self._model,)), *self._further)

    async def check_health(self) -> None:
        if self._keeping is not None and self._keeping.done():
            await self._keeping  # raises why it ended

    async def __del__(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await asyncio.to_thread(flush)


def openai_apps(config: ServeConfig, choice: ModelChoice, state: Path, ledger: str) -> dict[str, serve.Application]:
    """The applications by name; `PREFIXES` says where each belongs."""
    options: dict[str, Any] = {
        "max_ongoing_requests": 1000,
        "ray_actor_options": application_options(config),
        "health_check_period_s": 1.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 1.0,
    }
    return {
        "files": bound(serve.deployment(name="files", **options)(serve.ingress()(FilesApp)), config, str(state)),
        "batches": bound(serve.deployment(name="batches", **options)(serve.ingress()(BatchesApp)), config, choice, str(state), ledger),
    }
