"""Start and stop Ray, the ledger and the applications. Import only after `environment.prepare_environment`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig, ProxyStatus

from connectors.durable import publish
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import ConfigError
from harvester.serve.applications import (
    JOBS_APP,
    PREFIXES,
    are_anothers,
    has_failed,
    in_the_way,
    is_answering,
    leave,
    ours,
    raise_if_failed,
    running_replicas,
    tell_of_tries,
)
from harvester.serve.deployments.actor import end_other_ledgers, ledger_name, ledgers, start_ledger
from harvester.serve.deployments.jobs_app import jobs_app
from harvester.serve.deployments.ledger_host import LedgerSettings
from harvester.serve.deployments.openai_app import PREFIXES as OPENAI_PREFIXES
from harvester.serve.deployments.openai_app import openai_apps
from harvester.serve.deployments.placement import head_node, ledger_options
from harvester.serve.deployments.scale.replicas import ANSWER_WAIT_S, CHAT_APP, chat_app_of
from harvester.serve.deployments.seam import asleep, next_attempt
from harvester.serve.environment import EVERYWHERE, joined_variables, replica_host, use_haproxy
from harvester.serve.http.forwarding import prefix_of
from harvester.serve.machine.joined import SETUP, check_listens, ingress_there, join, wait_elsewhere
from harvester.serve.machine.node import QUIET, OwnNode
from harvester.serve.machine.nodes import check_ports, session_logs, token_warning
from harvester.serve.machine.port import check_port
from harvester.serve.machine.room import left_asleep, shortage
from harvester.serve.reach import Reach, host_here

if TYPE_CHECKING:
    from harvester.serve.session import Deployment

log = logging.getLogger("harvester.cluster")

PATHS = ("/", "/api/jobs", *OPENAI_PREFIXES.values())  # one path of each application
ChatApp = Callable[[ServeConfig, ModelChoice, Path, str], serve.Application]
HARVEST_STOP_S = 5.0
LOOK_S = 0.2
STATUS_S = 1.0  # between two status queries: each costs Serve's controller 0.1 s of a core, which the starting applications need


class Cluster:
    """Runs the applications in our own or a joined cluster. ``chat_app`` makes a model's, for chat and harvest, given the ledger's name.

    ``hurry``: set when the server is not to wait for open chats any more. ``node``: the head node, if this process started it; else the
    configured cluster is joined.
    """

    def __init__(self, deployment: Deployment, chat_app: ChatApp, hurry: threading.Event, node: OwnNode | None = None) -> None:
        self._deployment = deployment
        self._hurry = hurry
        self._config = deployment.config  # in a joined cluster, once joined: with the ingress that runs there
        self._folder = deployment.folder
        self._chat_app = chat_app
        self._chats = (CHAT_APP, *map(chat_app_of, self._config.models))
        self.node = node
        self._ledger = ledger_name(self._folder.root)
        self._found: dict[str, bool] = {}  # an earlier server's applications in a joined cluster, and whether each has failed
        self._is_ours = self._config.address is None  # may we end what runs? In a joined cluster, once we know that it is no other server's

    def __enter__(self) -> Self:
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        if self._config.address is not None:
            self._join(self._config.address)
        self._link_logs()
        return self

    def _join(self, address: str) -> None:
        """Join the cluster with the configured ingress or, if that is ``auto``, the one that Serve runs there. Raises `HarvesterError`."""
        ingress = "haproxy" if use_haproxy(self._config) else "proxy"
        while True:
            self._config = self._config.model_copy(update={"ingress": ingress})
            job = {"env_vars": joined_variables(self._config), "worker_process_setup_hook": SETUP}
            join(address, runtime_env=job, **QUIET)
            found = ingress_there()
            if found in (None, ingress):
                return
            if self._deployment.config.ingress != "auto":
                raise ConfigError(
                    f"Ray Serve in the cluster at {address} runs with ingress: {found}, not {ingress}; "
                    "give that one, or end Serve there first: serve shutdown"
                )
            ray.shutdown()
            ingress = found

    def _link_logs(self) -> None:
        """Link ``STATE/logs/ray`` to the logs of Ray and the replicas."""
        link = self._folder.logs / "ray"
        link.unlink(missing_ok=True)
        link.symlink_to(session_logs())

    def deploy(self, stop: threading.Event, tell: Callable[[str, str], None], look: Callable[[], None]) -> None:
        """Deploy the applications and wait until they serve or ``stop`` is set. Raises `EngineError` with the replica's own reason.

        ``tell`` receives ``waiting`` and what is being waited for, or ``warning`` and a sentence; ``look`` is called repeatedly meanwhile.
        """
        wait_opened = self._start_ledger()
        tell("waiting", "Ray Serve and its HAProxy to start")
        self._start_serve()
        tell("waiting", "the ledger to open")
        wait_opened()
        self._deploy_apps(tell)
        tell("waiting", "the model to load, and the applications to answer")
        self._wait_running(stop, tell, look)
        if self._config.address is not None and not stop.is_set():  # Serve, or a file on the application's machine, may have other numbers
            serve.get_app_handle(JOBS_APP).reset_scale.remote().result(timeout_s=ANSWER_WAIT_S)
        self._wait_reachable(stop, tell, look)

    def _start_ledger(self) -> Callable[[], None]:
        """See `start_ledger`. In a joined cluster, once we know that it runs no other server's applications."""
        if self._config.address is not None:
            self._look_around()
            end_other_ledgers(self._ledger)
            with publish(self._folder.cluster) as file:
                file.write(f"{self._config.address}\n".encode())
        return start_ledger(self._ledger, LedgerSettings.of(self._config, self._folder), ledger_options(self._config))

    def _start_serve(self) -> None:
        with suppress(TimeoutError):  # after 60 s of waiting for HAProxy; `_wait_running` waits longer
            serve.start(
                http_options=HTTPOptions(host=replica_host(self._config), port=self._config.port),
                logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
            )

    def _deploy_apps(self, tell: Callable[[str, str], None]) -> None:
        self._folder.scale.unlink(missing_ok=True)  # this deployment starts with the configured numbers of replicas
        given, deployment = self._config, self._deployment
        late = left_asleep(given, cpu=deployment.cpu)
        apps = [self._chat_target(None), *(self._chat_target(name, is_late=name in late) for name in given.models)]
        told = (given, deployment.choice, deployment.folder.root, self._ledger)
        jobs = jobs_app(*told, deployment.url, deployment.further, cpu=deployment.cpu, pid=deployment.pid)
        beside = {JOBS_APP: jobs} | openai_apps(*told)
        apps += [self._target(app, name, PREFIXES[name]) for name, app in beside.items()]
        with suppress(TimeoutError):  # as above
            serve.run_many(apps, wait_for_applications_running=False)
        asks_no_token = token_warning(given.address, head_node()) if given.address is not None else None
        for warning in filter(None, (asks_no_token, shortage(given, cpu=deployment.cpu))):
            tell("warning", warning)
        for name in late:
            tell("warning", f"{name} starts without a replica, as all GPUs are taken: its next chat or job loads it once one is free")

    def _wait_reachable(self, stop: threading.Event, tell: Callable[[str, str], None], look: Callable[[], None]) -> None:
        given = self._config
        paths = (*PATHS, *(f"{prefix_of(name)}/" for name in given.models))
        if self._is_ingress_here():
            reach = Reach(host_here(given.host), given.port, paths)
            while not stop.is_set() and not reach.is_whole():
                time.sleep(LOOK_S)
                look()
        if given.address is not None and given.host in (EVERYWHERE, "::") and not self._found:  # else they listened before this server
            tell("waiting", "the port of every machine with a replica")
            for late in wait_elsewhere(serve.status().proxies, given.port, paths, stop.is_set):
                tell("warning", f"port {given.port} of {late} does not lead to every application yet; see logs/ray in the state folder")

    def _chat_target(self, model: str | None, *, is_late: bool = False) -> serve.RunTarget:
        """The application of a further model, or the first (None). ``is_late``: it starts without a replica."""
        given, choice = self._config.of(model), self._deployment.choice if model is None else self._deployment.further[model]
        app = self._chat_app(given, choice, self._folder.root, self._ledger)
        return self._target(
            asleep(app) if is_late else app,
            chat_app_of(model),
            "/" if model is None else prefix_of(model),
            external_scaler_enabled=given.replicas.is_fixed,
        )

    def _target(self, app: serve.Application, name: str, prefix: str, *, external_scaler_enabled: bool = False) -> serve.RunTarget:
        if name in self._found:
            app = next_attempt(app, name, has_failed=self._found[name])
        quiet = LoggingConfig(enable_access_log=False, log_level="WARNING")
        return serve.RunTarget(app, name=name, route_prefix=prefix, logging_config=quiet, external_scaler_enabled=external_scaler_enabled)

    def _look_around(self) -> None:
        """Check a joined cluster for an earlier server's applications or, if Serve does not run yet, whether its nodes can listen.

        Raises `HarvesterError`, also for another server's applications.
        """
        try:
            client: Any = _get_global_client()
            http = client.http_config
        except RayServeException:  # no Serve yet
            check_ports(self._config.host, self._config.port, check_port)
            self._is_ours = True
            return
        check_listens(self._config, http.host, http.port)
        routes = {CHAT_APP: "/", **{chat_app_of(name): prefix_of(name) for name in self._config.models}, **PREFIXES}
        if (other := in_the_way(client.get_serve_details()["applications"], routes)) is not None:
            raise ConfigError(
                f"the cluster at {self._config.address} runs application {other}, which is not a harvester server's; "
                "end it there, or give it another name and route_prefix"
            )
        status = serve.status()
        running = ours(status)
        if are_anothers(running, self._ledger, ledgers()):
            raise ConfigError(
                f"the cluster at {self._config.address} runs {', '.join(running)} for another state folder than {self._folder.root}; "
                "give that one with --state, or end its applications first: harvester stop --state FOLDER"
            )
        self._found = {name: has_failed(status.applications[name], found=True) for name in running}
        self._is_ours = True
        for name in set(running) - {*self._chats, *PREFIXES}:  # of a model that is in the configuration no more
            serve.delete(name, _blocking=False)

    def drain(self) -> None:
        """Refuse new chats and wait for open ones, at most `drain_s` or until told to hurry. The other applications answer meanwhile."""
        try:
            for name in self._chats:
                self._stop_taking(name)
            end_s = time.monotonic() + self._config.drain_s
            while serve.status().applications.keys() & self._chats and time.monotonic() < end_s and not self._hurry.wait(0.1):
                pass
        except Exception:  # of Ray: it has nothing open that we could wait for
            log.debug("drain_failed", exc_info=True)

    def _stop_taking(self, name: str) -> None:
        """Stop one model's harvesting and new chats. A model without a replica, or with a dead one, does not hold up the others."""
        with suppress(Exception):  # of Ray, of many kinds
            serve.get_app_handle(name).broadcast("stop_harvest").results(timeout_s=HARVEST_STOP_S)
        serve.delete(name, _blocking=False)

    def _has_port(self, status: Any) -> bool:
        """Whether our own node's ingress is healthy. Always true in a joined cluster, which looks after its own."""
        proxies = status.proxies.values()
        return self._config.address is not None or (bool(proxies) and all(state == ProxyStatus.HEALTHY for state in proxies))

    def _is_ingress_here(self) -> bool:
        """Whether this machine has an ingress: in a joined cluster only the head and machines with a replica do."""
        return self._config.address is None or ray.get_runtime_context().get_node_id() in serve.status().proxies

    def _wait_running(self, stop: threading.Event, tell: Callable[[str, str], None], look: Callable[[], None]) -> None:
        told: set[str] = set()
        while not stop.is_set():
            look()
            status = serve.status()
            names = (*self._chats, *PREFIXES)
            apps = {name: app for name, app in status.applications.items() if name in names}
            is_whole = len(apps) == len(names) and self._has_port(status)
            if is_whole and all(is_answering(app, found=name in self._found) for name, app in apps.items()):
                for name, app in apps.items():
                    if app.status != ApplicationStatus.RUNNING:
                        tell("warning", f"{name} answers with {running_replicas(app)} replicas until Serve has replaced the missing ones")
                return
            raise_if_failed(apps, self._found)
            tell_of_tries(apps, partial(tell, "warning"), told)  # of those that ran before: they are waited for without end
            stop.wait(STATUS_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        is_new = error is None or CHAT_APP not in self._found  # after a failed redeployment, what ran before stays
        leaves = self._config.address is not None and self._is_ours and is_new
        if leaves and not leave(self._ledger, self._config.drain_s, self._hurry):
            self._folder.cluster.unlink(missing_ok=True)
        ray.shutdown()
