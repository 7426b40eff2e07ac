"""Builders of the applications for KubeRay's `RayService` and `serve deploy`, which replace `harvester serve`.

Ray Serve calls them on the cluster, once for each application of ``serveConfigV2``. Each takes the same arguments; whichever is called
first starts the ledger. State folder and config file are at the same path on every node; with a storage the
state folder may be each node's own.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from harvester.config import ServeConfig, load_config
from harvester.engine.launch.models import ModelChoice, choose_model, settled
from harvester.errors import ConfigError, StateError
from harvester.serve.access.gate import requiring_keys
from harvester.serve.access.keys import KeyRing
from harvester.serve.deployments.actor import ledger_name, start_ledger
from harvester.serve.deployments.jobs_app import jobs_app
from harvester.serve.deployments.ledger_host import LedgerSettings
from harvester.serve.deployments.openai_app import openai_apps
from harvester.serve.deployments.placement import ledger_options
from harvester.serve.deployments.replica import replica_app
from harvester.serve.machine.device import device_of
from harvester.serve.reach import url_here
from jobs.ledger.store.move import ready_state
from jobs.storage.folder import StateFolder, keep_private

log = logging.getLogger("harvester.builder")

LOCK_WAIT_S = 60.0


class Arguments(BaseModel):
    """The arguments of each application in ``serveConfigV2``."""

    model_config = ConfigDict(extra="forbid")

    config: str = Field(description="Path of the configuration.")
    state: str = Field(description="State folder, which all nodes share unless the configuration names a storage.")


def chat(given: Arguments) -> serve.Application:
    config, choice, state, ledger = _prepared(given)
    return replica_app(config, choice, state, ledger, cpu=device_of(config) == "cpu")


def jobs(given: Arguments) -> serve.Application:
    config, choice, state, ledger = _prepared(given)
    return jobs_app(config, choice, state, ledger, url_here(config.host, config.port), {}, cpu=device_of(config) == "cpu", pid=None)


def files(given: Arguments) -> serve.Application:
    return openai_apps(*_prepared(given))["files"]


def batches(given: Arguments) -> serve.Application:
    return openai_apps(*_prepared(given))["batches"]


def _prepared(given: Arguments) -> tuple[ServeConfig, ModelChoice, Path, str]:
    """Load the config and start the ledger. Raises `HarvesterError` if the config cannot be served or the ledger does not open."""
    is_haproxy = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"  # as Serve's controller was started, which is not our process
    config = load_config(Path(given.config), {"address": "auto", "ingress": "haproxy" if is_haproxy else "proxy"})
    if config.sleeps:  # Serve starts here without `serve.ingress.program`
        raise ConfigError(
            "replicas.min=0 is for harvester serve, whose HAProxy answers while there is no replica: set replicas.min to 1 or more, or "
            "deploy with harvester serve --address auto"
        )
    if config.models:
        raise ConfigError("models: one model for each application here; deploy several with harvester serve --address auto")
    folder = StateFolder(Path(given.state).absolute())
    keep_private()
    folder.prepare()
    _ready(folder, config)
    config = requiring_keys(config, folder.keys)
    if not config.access.no_keys and config.access.tokens is None and not KeyRing(config.api_keys, folder.keys).has_keys():
        log.warning("no_api_key every request but health is refused; make a key in the head's pod: harvester key add NAME")
    config = config.model_copy(update={"sources": config.sources.with_roots(None)})
    name = ledger_name(folder.root)
    start_ledger(name, LedgerSettings.of(config, folder), ledger_options(config))()
    choice = choose_model(config.model, config.served_model_name, elsewhere=True)
    config, _ = settled(config, choice.name)
    return config, choice, folder.root, name


def _ready(folder: StateFolder, config: ServeConfig) -> None:
    """`ready_state`, once builders of other applications have released the lock. Raises `HarvesterError`."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            with folder.locked():
                for line in ready_state(folder, config.ledger, config.storage):
                    log.warning("state %s", line)
                return
        except StateError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
