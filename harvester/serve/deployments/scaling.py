"""Replicas that follow their chats, by Serve's own autoscaling; and a number of them that somebody asks for."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.serve.exceptions import RayServeException

from connectors.durable import publish
from connectors.errors import StorageError
from harvester.config import ServeConfig
from harvester.engine.launch.defaults import gpus_of_replica
from harvester.errors import NoReplicaError, UsageError
from harvester.model_config import ReplicasConfig
from harvester.serve.deployments.replicas import chat_app_of
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


class Scale:
    """Changes the number of replicas of a model while they serve. ``cpu``: its engines run on one.

    ``kept``: a file for the numbers that were asked for, which Serve keeps where this process has to start again.
    """

    def __init__(self, config: ServeConfig, kept: Path, *, cpu: bool) -> None:
        self._config = config
        self._kept = kept
        self._cpu = cpu
        # By model, as asked for last.
        self._now = {None: config.replicas.max} | {name: one.replicas.max for name, one in config.models.items()}
        self._now |= {model: number for model, number in _read(kept).items() if model in self._now}

    async def __call__(self, number: int, model: str | None = None) -> int:
        """From now on there are ``number``, until the next start; returns how many there were. ``model``: a further one; None: the first.

        Raises `UsageError` where chat decides, where they do not fit, and for a model that there is not.
        """
        if model not in self._now:
            raise UsageError(f"there is no further model {model}; there are {', '.join(self._config.models) or 'none'}")
        given = self._of(model).replicas
        if not given.is_fixed:
            raise UsageError(
                f"there are {given.min} to {given.max} replicas, as their chats need; change replicas in the server's config instead"
            )
        if self._config.address is None:  # a joined cluster may grow
            fit = await asyncio.to_thread(self._room, model)
            if number > fit:
                raise UsageError(f"replicas {number} do not fit this machine, which has room for {fit}; give a smaller number")
        try:
            is_done = await set_replicas(chat_app_of(model), REPLICA, number)
        except (RayServeException, ValueError) as error:
            raise NoReplicaError("the chat application is being started or stopped; try again in a moment") from error
        if not is_done:
            raise UsageError("these replicas were deployed by the configuration of their cluster; change num_replicas there")
        was, self._now[model] = self._now[model], number
        with suppress(StorageError), publish(self._kept) as file:  # Serve has the number; without the file it is told wrongly, at worst
            file.write(json.dumps([[name, count] for name, count in self._now.items()]).encode())
        return was

    def wanted(self, model: str | None = None) -> int:
        """Replicas that there are to be; where chat decides, the fewest."""
        given = self._of(model).replicas
        return self._now[model] if given.is_fixed else given.min

    def bounds(self) -> dict[str, int]:
        """Of the first model, as ``GET /api/server`` tells them."""
        given = self._config.replicas
        return {"replicas": self.wanted(), "max_replicas": self._now[None] if given.is_fixed else given.max}

    def all_wanted(self) -> int:
        """Of all models."""
        return sum(map(self.wanted, self._now))

    def _of(self, model: str | None) -> ServeConfig:
        return self._config if model is None else self._config.of(model)

    def _room(self, model: str | None) -> int:
        """Replicas of ``model`` that fit beside those of the others, by what Ray counts."""
        found: dict[str, float] = ray.cluster_resources()
        cpus, gpus = found.get("CPU", 0.0), found.get("GPU", 0.0)
        for other, count in self._now.items():
            if other != model:
                cpus -= count * (self._of(other).num_cpus or 1.0)
                gpus -= count * self._gpus(other)
        own = self._gpus(model)
        fit = math.floor(cpus / (self._of(model).num_cpus or 1.0) + 1e-9)
        return fit if not own else min(fit, math.floor(gpus / own + 1e-9))

    def _gpus(self, model: str | None) -> float:
        """Of one replica."""
        return 0.0 if self._cpu else gpus_of_replica(self._of(model))


def _read(kept: Path) -> dict[str | None, int]:
    try:
        return {name: int(count) for name, count in json.loads(kept.read_bytes())}
    except (OSError, ValueError, TypeError):  # none, or a damaged one: the configuration's
        return {}
