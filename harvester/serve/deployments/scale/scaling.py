"""The number of replicas: it follows chat, and jobs if configured, by Serve's own autoscaling, or is set through the API."""

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
from harvester.serve.machine.room import cpus_of_replica
from jobs.hint import Demand

REPLICA = "replica"  # the deployment's name
FLOOR = "floor"  # name of the metric that replicas report to Serve
ASK_S = 5.0  # between two questions of a replica to the ledger
JOINED_TRIES = 10
LOOK_BACK_S = 15.0  # window for the mean of open chats; replicas report theirs every 10 s


def scaling(replicas: ReplicasConfig) -> dict[str, Any]:
    """Options of the deployment. Serve counts only requests from its ingress, not those of the harvest loop."""
    if replicas.is_fixed:
        return {"num_replicas": replicas.min}
    by_jobs = {"policy": {"policy_function": f"{__name__}:{with_floor.__name__}"}} if replicas.follows_jobs else {}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min,
            **({"initial_replicas": 1} if replicas.sleeps else {}),  # so that a model that cannot be loaded fails at the start
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target,
            "upscale_delay_s": replicas.up_s,
            "downscale_delay_s": replicas.down_s,
            "look_back_period_s": LOOK_BACK_S,
            **by_jobs,
        }
    }


def tries(config: ServeConfig) -> int:
    """After how many failed starts of a replica Serve gives the deployment up, at most three per replica (``max_constructor_retry_count``).

    In a cluster of our own, a model that does not start at the first try will not at the third. In a joined one, failures on one machine
    must not end a rolling update.
    """
    return 1 if config.address is None else JOINED_TRIES


def with_floor(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Autoscaling policy for a range that follows jobs too: what open chats need, but at least the floor that replicas report."""
    number, state = replica_queue_length_autoscaling_policy(context)
    told = [series[-1].value for series in (context.raw_metrics or {}).get(FLOOR, {}).values() if series]
    return max([number, *told]), state


class Floor:
    """Runs in a replica: learns from the ledger the minimum number of replicas for the jobs of ``model``."""

    def __init__(self, replicas: ReplicasConfig, model: str, ledger: LedgerActor) -> None:
        self._replicas = replicas
        self._model = model
        self._ledger = ledger
        self._now = 0

    async def run(self) -> None:
        """Ask the ledger every `ASK_S`, if jobs may ask for replicas. The last number stays while the ledger does not answer."""
        while self._replicas.follows_jobs:
            with suppress(HarvesterError):
                self._now = floor_of(self._replicas, await self._ledger.demand(self._model))
            await asyncio.sleep(ASK_S)

    def stats(self) -> dict[str, float]:
        """For Serve's ``record_autoscaling_stats``."""
        return {FLOOR: self._now}


def floor_of(replicas: ReplicasConfig, demand: Demand) -> int:
    at_work, at_risk = replicas.floors
    return max(at_work * demand.has_work, at_risk * demand.is_late)


def deadline_note(config: ServeConfig, *, cpu: bool) -> str | None:
    """Note on what a deadline may cost in further replicas, for the user who sets one. None if it adds none."""
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
    """Changes a model's number of replicas while they serve. ``cpu``: the engines run on the CPU.

    ``kept``: file of the numbers asked for. Serve keeps those when this process restarts, which then reads them from the file.
    """

    def __init__(self, config: ServeConfig, kept: Path, *, cpu: bool) -> None:
        self._config = config
        self._kept = kept
        self._cpu = cpu
        # By model, as asked for last.
        self._now = {None: config.replicas.max} | {name: one.replicas.max for name, one in config.models.items()}
        self._now |= {model: number for model, number in _read(kept).items() if model in self._now}

    async def __call__(self, number: int, model: str | None = None) -> int:
        """Run ``number`` replicas until the server's next start; returns the former number. ``model``: a further one; None: the first.

        Raises `UsageError` if the model is autoscaled or unknown, or if they do not fit; `NoReplicaError` while it starts or stops.
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
        with suppress(StorageError), publish(self._kept) as file:  # Serve has the number; without the file, we may report a wrong one
            file.write(json.dumps([[name, count] for name, count in self._now.items()]).encode())
        return was

    async def reset(self) -> None:
        """Return to the configured numbers, where they are fixed: Serve and the file keep those that the server before was asked for."""
        for model in self._now:
            if self._of(model).replicas.is_fixed:
                await self(self._of(model).replicas.max, model)

    def wanted(self, model: str | None = None) -> int:
        """Target number of replicas; if autoscaled, the minimum."""
        given = self._of(model).replicas
        return self._now[model] if given.is_fixed else given.min

    def may_sleep(self, model: str | None = None) -> bool:
        """Whether it may have no replica."""
        return self._of(model).replicas.sleeps

    def bounds(self) -> dict[str, int]:
        """Minimum and maximum of the first model's replicas, for ``GET /api/server``."""
        given = self._config.replicas
        return {"replicas": self.wanted(), "max_replicas": self._now[None] if given.is_fixed else given.max}

    def all_wanted(self, first: str) -> dict[str, int]:
        """`wanted` of each model by its name; ``first``: the name of the first one."""
        return {first if model is None else model: self.wanted(model) for model in self._now}

    def _of(self, model: str | None) -> ServeConfig:
        return self._config if model is None else self._config.of(model)

    def _room(self, model: str | None) -> int:
        """How many replicas of ``model`` fit beside the fewest of the other models, by Ray's resources."""
        found: dict[str, float] = ray.cluster_resources()
        cpus, gpus = found.get("CPU", 0.0), found.get("GPU", 0.0)
        for other in self._now:
            if other != model:
                count = self.wanted(other)
                cpus -= count * cpus_of_replica(self._of(other))
                gpus -= count * self._gpus(other)
        own = self._gpus(model)
        fit = math.floor(cpus / cpus_of_replica(self._of(model)) + 1e-9)
        return fit if not own else min(fit, math.floor(gpus / own + 1e-9))

    def _gpus(self, model: str | None) -> float:
        """GPUs of one replica; 0 on CPU."""
        return 0.0 if self._cpu else gpus_of_replica(self._of(model))


def _read(kept: Path) -> dict[str | None, int]:
    try:
        return {name: int(count) for name, count in json.loads(kept.read_bytes())}
    except (OSError, ValueError, TypeError):  # no file, or a damaged one: the configured numbers count
        return {}
