"""One session: the cluster from start to end, in a process of its own. The supervisor survives whatever Ray does to that process."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from connectors.edge import MAX_TOLD, first_line
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.engine.processes.forked import end_with_parent
from harvester.errors import HarvesterError
from harvester.logs import write_logs
from harvester.serve.environment import prepare_environment, use_haproxy
from harvester.serve.ingress.front import Front
from harvester.serve.processes import lower_housekeeping
from jobs.storage.folder import StateFolder

if TYPE_CHECKING:
    from harvester.serve.cluster import Cluster

log = logging.getLogger("harvester.session")
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served, the same in every session. ``chat_app``: a `cluster.ChatApp`; None: vLLM's replicas."""

    config: ServeConfig
    folder: StateFolder
    choice: ModelChoice
    further: Mapping[str, ModelChoice]  # by the name that clients use
    url: str
    mark: str
    cpu: bool
    pid: int  # the supervisor's
    chat_app: Any


def run_session(deployment: Deployment, front: Front | None, told: Connection) -> None:
    """Main function of the process. Sends ``("ready", None)``, and ``("failed", error)`` or ``("lost", reason)`` if SIGTERM did not end it.

    A second SIGTERM ends the wait for open requests. Dies with the supervisor.
    """
    end_with_parent(deployment.pid)
    write_logs(deployment.config.logs, deployment.folder.logs, "session")
    stop, hurry = threading.Event(), threading.Event()
    listen = _listener(stop, hurry)
    listen()
    try:
        _serve(deployment, front, told, listen, stop, hurry)
    except HarvesterError as error:
        told.send(("failed", error))
    except Exception as error:  # raised by Ray, mostly a timeout of its own on a busy machine
        if isinstance(error, OSError) and error.errno is not None:  # Ray's `TimeoutError` is an `OSError` too, but has no errno
            told.send(("failed", error))
            return
        log.debug("session_failed", exc_info=True)
        told.send(("lost", f"{type(error).__name__}: {first_line(error)[:MAX_TOLD]}"))


def _serve(
    deployment: Deployment,
    front: Front | None,
    told: Connection,
    listen: Callable[[], None],
    stop: threading.Event,
    hurry: threading.Event,
) -> None:
    prepare_environment(deployment.config, deployment.folder, deployment.mark)
    told.send(("waiting", "Ray to start"))
    node = None
    if deployment.config.address is None:
        from harvester.serve.machine.node import start_own_node

        with imported_beside("harvester.serve.cluster"):
            node = start_own_node(deployment.config, deployment.folder)
            listen()  # again, because Ray has installed its own handlers
    from functools import partial

    from harvester.serve.cluster import Cluster
    from harvester.serve.deployments.replica import replica_app
    from harvester.serve.machine.joined import await_head

    await_head(deployment.config.address, stop.is_set, lambda what: told.send(("waiting", what)))
    if stop.is_set():
        return
    chat_app = deployment.chat_app or partial(replica_app, cpu=deployment.cpu)
    with Cluster(deployment, chat_app, hurry, node) as cluster:
        listen()  # likewise, where it has joined one
        look = partial(look_after, cluster, front, told)
        cluster.deploy(stop, lambda kind, what: told.send((kind, what)), look)
        if not stop.is_set():
            lower_housekeeping(deployment.mark, is_haproxy=use_haproxy(deployment.config))
            told.send(("ready", None))
        while not stop.wait(LOOK_S):
            look()
        cluster.drain()


@contextmanager
def imported_beside(name: str) -> Iterator[None]:
    """Import a module in a thread during the block, which mostly waits. An import that fails does so again where the module is used."""

    def load() -> None:
        with suppress(Exception):
            importlib.import_module(name)

    thread = threading.Thread(target=load, name="import")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def look_after(cluster: Cluster, front: Front | None, told: Connection) -> None:
    """Restart what Ray does not restart. Exits the process if that takes a new cluster: Ray's own shutdown would wait for what has died."""
    if cluster.node is None:
        return
    if cluster.node.raylet_is_gone():
        told.send(("lost", "Ray's raylet has died, and all that it ran with it"))
        os._exit(1)
    if cluster.node.gcs_is_gone():
        told.send(("warning", "Ray's GCS has died; starting another"))
        try:
            cluster.node.restart_gcs()
        except Exception as error:  # of Ray, of many kinds
            told.send(("lost", f"Ray's GCS has died, and another one does not start: {first_line(error)[:MAX_TOLD]}"))
            os._exit(1)
    if front is not None and front.is_gone():
        told.send(("warning", "HAProxy has died; starting another"))
        front.bring_back()


def _listener(stop: threading.Event, hurry: threading.Event) -> Callable[[], None]:
    def on_stop(number: int, frame: object) -> None:
        (hurry if stop.is_set() else stop).set()

    def listen() -> None:
        signal.signal(signal.SIGTERM, on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the supervisor gets it too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    return listen
