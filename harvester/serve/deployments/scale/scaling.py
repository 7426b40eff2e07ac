"""Replicas that follow their chats, by Serve's own autoscaling; and a number of them that somebody asks for."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingContext
from ray.serve.exceptions import RayServeException

from connectors.durable import publish
from connectors.errors import StorageError
from harvester.config import ServeConfig
from harvester.engine.launch.defaults import gpus_of_replica
from harvester.errors import HarvesterError, NoReplicaError, UsageError
from harvester.model_config import ReplicasConfig
from harvester.serve.deployments.actor import LedgerActor
from harvester.serve.deployments.scale.replicas import chat_app_of
from harvester.serve.deployments.seam import set_replicas
from jobs.hint import Demand

REPLICA = "replica"  # the deployment's name
FLOOR = "floor"  # name of a number that replicas tell Serve
ASK_S = 5.0  # between two questions of a replica to the ledger
LOOK_BACK_S = 15.0  # of the mean of open chats; replicas tell theirs every 10 s


def scaling(replicas: ReplicasConfig) -> dict[str, Any]:
    """Options of the deployment. Serve counts requests that came from its ingress: those of the harvest loop are none."""
    if replicas.is_fixed:
        return {"num_replicas": replicas.min}
    by_jobs = {"policy": {"policy_function": f"{__name__}:{with_floor.__name__}"}} if replicas.follows_jobs else {}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min,
            **({"initial_replicas": 1} if replicas.sleeps else {}),  # a model that cannot be loaded is found out at the start
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target,
            "upscale_delay_s": replicas.up_s,
            "downscale_delay_s": replicas.down_s,
            "look_back_period_s": LOOK_BACK_S,
            **by_jobs,
        }
    }


def with_floor(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Serve's policy for a range that follows jobs too: as many as open chats need, and at least what replicas tell of jobs."""
    number, state = replica_queue_length_autoscaling_policy(context)
    told = [series[-1].value for series in (context.raw_metrics or {}).get(FLOOR, {}).values() if series]
    return max([number, *told]), state


class Floor:
    """In a replica: the fewest that there are to be for the jobs of its ``model``, as the ledger tells."""

    def __init__(self, replicas: ReplicasConfig, model: str, ledger: LedgerActor) -> None:
        self._replicas = replicas
        self._model = model
        self._ledger = ledger
        self._now = 0

    async def run(self) -> None:
        """Ask every `ASK_S`, where jobs may ask for replicas. What is known stays while nobody answers."""
        while self._replicas.follows_jobs:
            with suppress(HarvesterError):
                self._now = floor_of(self._replicas, await self._ledger.demand(self._model))
            await asyncio.sleep(ASK_S)

    def stats(self) -> dict[str, float]:
        """For Serve's ``record_autoscaling_stats``."""
        return {FLOOR: self._now}


def floor_of(replicas: ReplicasConfig, demand: Demand) -> int:
    asked = [replicas.jobs or int(replicas.sleeps)] * demand.has_work + [replicas.at_risk or 0] * demand.is_late
    return max(asked, default=0)


def deadline_note(config: ServeConfig, *, cpu: bool) -> str | None:
    """What a deadline may cost beside the job's own share, for who sets one; None where it asks for no replica."""
    replicas = config.replicas
    if replicas.is_fixed or replicas.at_risk is None or replicas.at_risk == replicas.min:
        return None
    more = replicas.at_risk - replicas.min
    gpus = 0.0 if cpu else more * gpus_of_replica(config)
    price = config.price.per_gpu_hour if config.price is not None else None
    on = f" on {gpus:g} more GPUs" if gpus else ""
    cost = f", {gpus * price:,.2f} {config.price.currency} an hour" if gpus and price is not None and config.price is not None else ""
    return f"While this deadline is at risk there are at least {replicas.at_risk} replicas, {more} above the fewest{on}{cost}."


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

    def may_sleep(self, model: str | None = None) -> bool:
        """Whether it may have no replica."""
        return self._of(model).replicas.sleeps

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
