"""What is private to Ray Serve and used in the process of a deployment: one place, driven by tests on a real Serve."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.serve._private import replica as serve_replica
from ray.serve._private.common import DeploymentID
from ray.serve._private.exceptions import ExternalScalerDisabledError
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentBroadcastResponse

LOOK_S = 0.25


def keep_to_loopback() -> None:
    """Call it from a deployment's constructor. Serve is about to open a gRPC port on every interface, for calls that we do not make."""
    module: Any = serve_replica
    opens = module.add_port_to_grpc_server

    def open_on_loopback(server: Any, address: str) -> int:
        return int(opens(server, address.replace("[::]", "127.0.0.1")))

    module.add_port_to_grpc_server = open_on_loopback


async def told_to_leave() -> None:
    """Return when Serve has begun to stop this replica: it says so nowhere, and calls the destructor after the last open request."""
    worker: Any = ray._private.worker.global_worker
    actor = worker.actors[worker.actor_id]
    while not actor._replica_impl._shutting_down:  # noqa: ASYNC110 - Serve has no event to wait for
        await asyncio.sleep(LOOK_S)


async def answers(response: DeploymentBroadcastResponse, wait_s: float) -> list[Any]:
    """Of each replica that was asked its answer, or what it failed with; `TimeoutError` for one that is silent for ``wait_s``.

    Serve waits for all, or with a time of its own throws every answer away: one machine without power hid all others for a minute.
    """
    asked = await response._fetch_replica_results_async()
    return await asyncio.gather(*(asyncio.wait_for(one.get_async(), wait_s) for one in asked), return_exceptions=True)


async def set_replicas(app: str, deployment: str, number: int) -> bool:
    """Have Serve run so many; False where the application was not deployed with ``external_scaler_enabled``.

    Serve's own way is its dashboard, which we do not start. Raises `ValueError` for an application that is not there.
    """
    client: Any = _get_global_client()
    try:
        await client._controller.update_deployment_replicas.remote(DeploymentID(name=deployment, app_name=app), number)
    except ExternalScalerDisabledError:
        return False
    return True
