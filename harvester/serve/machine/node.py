"""Start a head node of our own, with uses of Ray's private API: ports for slow agents, no unused processes, restart of the GCS.

Import after the environment has been prepared. It imports nothing of Ray Serve, so that Ray's processes start while that is imported.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, services
from ray._private.node import Node

from harvester.config import ServeConfig
from harvester.ports import free_port
from harvester.serve.machine.room import own_cpus
from harvester.serve.processes import mark_of
from harvester.serve.runtime import ray_folder, runtime_folder
from harvester.timers import patient_children
from jobs.storage.folder import StateFolder

NAMESPACE = "harvester"
QUIET: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
OBJECT_STORE_BYTES = 200 * 1024 * 1024  # only short messages go through it
# Starters of processes of a head that nothing here asks: the autoscaler, the API server, and the reader of logs for the driver. Each is a
# Python process that polls, with 44 to 70 MB of its own. `ray.init` waits until the API server is up, though it has no dashboard.
UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")
AGENT_PORTS = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port")


@contextmanager
def ports_of_agents() -> Iterator[None]:
    """Tell the raylet its agents' ports. Otherwise it waits 15 s for the agents to report them, and dies if a busy machine is slower."""
    files: Any = _raylet
    start = services.start_raylet

    def start_told(*given: Any, **named: Any) -> Any:
        call = inspect.signature(start).bind(*given, **named)
        call.arguments |= {name: free_port() for name in AGENT_PORTS}
        told = call.arguments
        # For this one port the raylet has no argument: it reads the file that the agent would write.
        name, port = files.DASHBOARD_AGENT_LISTEN_PORT_NAME, told["dashboard_agent_listen_port"]
        files.persist_port(told["session_dir"], told["node_id"], name, port)
        return start(*call.args, **call.kwargs)

    services.start_raylet = start_told
    try:
        yield
    finally:
        services.start_raylet = start


@contextmanager
def without_unused() -> Iterator[None]:
    """Start no process of `UNUSED` with a head node that is started within the block."""
    stock = {name: getattr(Node, name) for name in UNUSED}
    for name in UNUSED:
        setattr(Node, name, lambda *given, **named: None)
    try:
        yield
    finally:
        for name, start in stock.items():
            setattr(Node, name, start)


def start_own_node(config: ServeConfig, folder: StateFolder) -> OwnNode:
    """Start Ray for the server of this state folder alone, on this machine, and connect to it."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    temporary = ray_folder(runtime_folder(folder, mark_of(folder.root)))
    with patient_children(), ports_of_agents(), without_unused():
        ray.init(
            address="local",
            num_cpus=own_cpus(config),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(temporary),
            **QUIET,
        )
    return OwnNode()


class OwnNode:
    """The head node that this process has started. Its GCS keeps its tables on disk (RocksDB), so that a new GCS continues with them."""

    def __init__(self) -> None:
        self._node: Any = ray._private.worker._global_node

    def gcs_is_gone(self) -> bool:
        return self._is_gone(ray_constants.PROCESS_TYPE_GCS_SERVER)

    def raylet_is_gone(self) -> bool:
        return self._is_gone(ray_constants.PROCESS_TYPE_RAYLET)

    def restart_gcs(self) -> None:
        """Start a new GCS on the same port. Actors and requests have gone on meanwhile; clients of the GCS retry."""
        self._node.all_processes.pop(ray_constants.PROCESS_TYPE_GCS_SERVER, None)
        self._node._gcs_address = self._node._gcs_client = None
        self._node.start_gcs_server()

    def _is_gone(self, kind: str) -> bool:
        return any(info.process.poll() is not None for info in self._node.all_processes.get(kind, ()))
