"""Start and stop Ray, the ledger and the applications. Import only after `environment.prepare_environment`."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, LoggingConfig

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import EngineError
from harvester.serve.actor import NAMESPACE, start_ledger
from harvester.serve.jobs_app import jobs_app
from harvester.serve.openai_app import PREFIXES, openai_apps
from harvester.serve.processes import mark_of
from harvester.serve.replicas import CHAT_APP
from harvester.timers import patient_children
from jobs.folder import StateFolder

JOBS_APP = "jobs"
APPS = (CHAT_APP, JOBS_APP, *PREFIXES)
ChatApp = Callable[[ServeConfig, ModelChoice, Path, str], serve.Application]
OBJECT_STORE_BYTES = 200 * 1024 * 1024  # only short messages go through it


class Cluster:
    """``chat_app`` makes the application that answers chat and harvests, given the ledger's name."""

    def __init__(self, config: ServeConfig, folder: StateFolder, choice: ModelChoice, url: str, chat_app: ChatApp) -> None:
        self._config = config
        self._folder = folder
        self._choice = choice
        self._url = url
        self._chat_app = chat_app
        self._ledger = f"ledger-{mark_of(folder.root)}"

    def __enter__(self) -> Self:
        options: dict[str, Any] = {
            "namespace": NAMESPACE,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }
        if self._config.address is None:
            needed = max(os.cpu_count() or 1, self._config.replicas)
            options |= {"address": "local", "num_cpus": needed, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        else:
            options |= {"address": self._config.address}
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with patient_children():
                ray.init(**options)
        except ConnectionError as error:
            raise EngineError(
                f"no Ray cluster answers at {self._config.address}, or it takes another token than ours (RAY_AUTH_TOKEN); "
                "start one with: ray start --head"
            ) from error
        self._link_logs()
        return self

    def _link_logs(self) -> None:
        """Link ``STATE/logs/ray`` to the logs of Ray and the replicas."""
        link = self._folder.logs / "ray"
        link.unlink(missing_ok=True)
        link.symlink_to(session_logs())

    def deploy(self, stop: threading.Event) -> None:
        """Deploy the applications and wait until they serve, or ``stop``. Raises `EngineError` with the replica's own reason."""
        start_ledger(self._ledger, self._folder.root, self._config.harvest.lease_s, self._config.deadlines)
        serve.start(
            http_options=HTTPOptions(host=self._config.host, port=self._config.port),
            logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
        )
        quiet = LoggingConfig(enable_access_log=False, log_level="WARNING")
        apps = [
            serve.RunTarget(
                self._chat_app(self._config, self._choice, self._folder.root, self._ledger),
                name=CHAT_APP,
                route_prefix="/",
                logging_config=quiet,
            ),
            serve.RunTarget(
                jobs_app(self._config, self._choice, self._folder.root, self._ledger, self._url, os.getpid()),
                name=JOBS_APP,
                route_prefix="/api",
                logging_config=quiet,
            ),
        ]
        beside = openai_apps(self._config, self._choice, self._folder.root, self._ledger)
        apps += [serve.RunTarget(app, name=name, route_prefix=PREFIXES[name], logging_config=quiet) for name, app in beside.items()]
        serve.run_many(apps, wait_for_applications_running=False)
        self._wait_running(stop)

    def _wait_running(self, stop: threading.Event) -> None:
        while not stop.is_set():
            apps = serve.status().applications
            states = [apps[name].status if name in apps else None for name in APPS]
            if all(state == ApplicationStatus.RUNNING for state in states):
                return
            for name in APPS:
                if name in apps and apps[name].status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
                    reason = _reason(apps[name])
                    cause = _root_cause() if "root cause" in reason else None
                    raise EngineError(f"{reason.split(' See root cause')[0]} Cause: {cause}" if cause else reason)
            time.sleep(0.2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._config.address is not None:
            for name in APPS:
                serve.delete(name, _blocking=True)
            ray.kill(ray.get_actor(self._ledger, namespace=NAMESPACE))
        ray.shutdown()


def session_logs() -> Path:
    node = ray._private.worker.global_worker.node
    return Path(node.get_logs_dir_path()) if node is not None else Path("/tmp/ray/session_latest/logs")


def _root_cause() -> str | None:
    """The last error in the logs of vLLM's processes; Serve only sees that they ended."""
    pattern = re.compile(r"ERROR [^\]]+\] (\w*(?:Error|Exception)): (.+)")
    found = [m for log in session_logs().glob("worker-*.out") for m in pattern.finditer(log.read_text("utf-8", "replace"))]
    return found[-1].group(2).strip() if found else None


def _reason(app: Any) -> str:
    """The line of Serve's status with the reason of a failed deployment."""
    texts = [deployment.message for deployment in app.deployments.values() if deployment.message] + [app.message]
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in reversed(lines):
            if "EngineError" in line or "ConfigError" in line or "Error:" in line:
                return str(line.split("Error: ", 1)[-1])
    return str(texts[-1].splitlines()[-1]) if texts and texts[-1] else "a replica did not start"
