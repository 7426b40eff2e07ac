"""Uses of Ray's private API in the process that starts it: ports for slow agents, restart of the GCS. Import after the environment."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, services

from harvester.ports import free_port

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
