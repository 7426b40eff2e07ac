"""Uses of Ray Serve's private API for deployments, in one place and tested on a real Serve."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve._private import replica as serve_replica
from ray.serve._private.common import DeploymentID
from ray.serve._private.exceptions import ExternalScalerDisabledError
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentBroadcastResponse

from harvester.serve.deployments.version import attempt_at

LOOK_S = 0.25


def keep_to_loopback() -> None:
    """Make Serve open its gRPC port on loopback, not on every interface: we do not call it. Call this in a deployment's constructor."""
    module: Any = serve_replica
    opens = module.add_port_to_grpc_server

    def open_on_loopback(server: Any, address: str) -> int:
        return int(opens(server, address.replace("[::]", "127.0.0.1")))

    module.add_port_to_grpc_server = open_on_loopback


async def told_to_leave() -> None:
    """Return when Serve begins to stop this replica. Serve does not announce it, and calls the destructor after the last open request."""
    worker: Any = ray._private.worker.global_worker
    actor = worker.actors[worker.actor_id]
    while not actor._replica_impl._shutting_down:  # noqa: ASYNC110 - Serve has no event to wait for
        await asyncio.sleep(LOOK_S)


async def answers(response: DeploymentBroadcastResponse, wait_s: float) -> list[Any]:
    """The answer or exception of each replica of a broadcast; `TimeoutError` for one that is silent for ``wait_s``.

    Serve itself waits for all replicas, or on its own timeout drops every answer: one machine without power hid all others for a minute.
    """
    asked = await response._fetch_replica_results_async()
    return await asyncio.gather(*(asyncio.wait_for(one.get_async(), wait_s) for one in asked), return_exceptions=True)


async def set_replicas(app: str, deployment: str, number: int) -> bool:
    """Have Serve run ``number`` replicas. False if the application was not deployed with ``external_scaler_enabled``.

    Serve's public way is its dashboard, which we do not start. Raises `ValueError` for an application that is not there.
    """
    client: Any = _get_global_client()
    try:
        await client._controller.update_deployment_replicas.remote(DeploymentID(name=deployment, app_name=app), number)
    except ExternalScalerDisabledError:
        return False
    return True


def next_attempt(application: serve.Application, app: str, *, has_failed: bool) -> serve.Application:
    """``application``, made by `bound`, to be deployed as ``app``, where Serve may run it already (`attempt_at`)."""
    deployment: Any = application._bound_deployment
    client: Any = _get_global_client()
    try:
        deployed = client.get_deployment_info(deployment.name, app)[0].version
    except KeyError:  # it is not there
        return application
    version = attempt_at(deployment.version, deployed, has_failed=has_failed)
    return serve.Application(deployment.options(_internal=True, version=version))


def asleep(application: serve.Application) -> serve.Application:
    """``application``, made by `bound` with a range from 0, to be deployed without a replica."""
    deployment: Any = application._bound_deployment
    ranged = deployment._deployment_config.autoscaling_config.model_copy(update={"initial_replicas": 0})
    return serve.Application(deployment.options(_internal=True, autoscaling_config=ranged))
