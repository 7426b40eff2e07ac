"""Replicas that follow their chats, by Serve's own autoscaling; and a number of them that somebody asks for."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import ray
from ray.serve.exceptions import RayServeException

from harvester.config import ServeConfig
from harvester.errors import NoReplicaError, UsageError
from harvester.scale_config import ReplicasConfig
from harvester.serve.deployments.replicas import CHAT_APP
from harvester.serve.deployments.seam import set_replicas

REPLICA = "replica"  # the deployment's name
LOOK_BACK_S = 15.0  # of the mean of open chats; replicas tell theirs every 10 s


def scaling(replicas: ReplicasConfig) -> dict[str, Any]:
    """Options of the deployment. Serve counts requests that came from its ingress: those of the harvest loop are none."""
    if replicas.is_fixed:
        return {"num_replicas": replicas.min}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min,
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target,
            "upscale_delay_s": replicas.up_s,
            "downscale_delay_s": replicas.down_s,
            "look_back_period_s": LOOK_BACK_S,
        }
    }


def room(config: ServeConfig, gpus: float) -> int:
    """Replicas that fit the cluster of this server, by what Ray counts. ``gpus``: of one replica."""
    found: dict[str, float] = ray.cluster_resources()
    fit = math.floor(found.get("CPU", 0.0) / (config.num_cpus or 1.0) + 1e-9)
    return fit if not gpus else min(fit, math.floor(found.get("GPU", 0.0) / gpus + 1e-9))


class Scale:
    """Changes the number of replicas while they serve. ``gpus``: of one replica; 0 on a CPU."""

    def __init__(self, config: ServeConfig, gpus: float) -> None:
        self._config = config
        self._gpus = gpus

    async def __call__(self, number: int) -> None:
        """From now on there are ``number``, until the next start. Raises `UsageError` where chat decides, or they do not fit."""
        given = self._config.replicas
        if not given.is_fixed:
            raise UsageError(
                f"this server has {given.min} to {given.max} replicas, as its chats need; change replicas in its config instead"
            )
        if self._config.address is None:  # a joined cluster may grow
            fit = await asyncio.to_thread(room, self._config, self._gpus)
            if number > fit:
                raise UsageError(f"replicas {number} do not fit this machine, which has room for {fit}; give a smaller number")
        try:
            is_done = await set_replicas(CHAT_APP, REPLICA, number)
        except (RayServeException, ValueError) as error:
            raise NoReplicaError("the chat application is being started or stopped; try again in a moment") from error
        if not is_done:
            raise UsageError("these replicas were deployed by the configuration of their cluster; change num_replicas there")
