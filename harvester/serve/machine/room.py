"""What the replicas of a configuration ask of Ray, and whether its machines have it."""

from __future__ import annotations

import math
import os

import ray

from harvester.config import ServeConfig
from harvester.engine.launch.defaults import gpus_of_replica
from harvester.errors import ConfigError


def cpus_of_replica(config: ServeConfig) -> float:
    """CPUs that a replica asks of Ray."""
    return config.num_cpus or 1.0


def own_cpus(config: ServeConfig) -> int:
    """CPUs that Ray counts on a cluster of our own: enough for all replicas, however few the machine has. They are only accounting."""
    return max(os.cpu_count() or 1, math.ceil(sum(one.replicas.max * cpus_of_replica(one) for one in _models(config))))


def shortage(config: ServeConfig, *, cpu: bool) -> str | None:
    """What Ray lacks now for the smallest number of replicas; None where all have room. ``cpu``: the engine uses no GPU.

    Raises `ConfigError` where a cluster of our own has too few GPUs for them, or for a single replica: no other machine joins it.
    """
    found: dict[str, float] = ray.cluster_resources()
    models = _models(config)
    wanted = {"CPU": sum(one.replicas.min * cpus_of_replica(one) for one in models)}
    if not cpu:
        wanted["GPU"] = sum(one.replicas.min * gpus_of_replica(one) for one in models)
        if config.address is None:
            _require_gpus(max(wanted["GPU"], *map(gpus_of_replica, models)), found.get("GPU", 0.0))
    short = [
        f"{number:g} {kind}s, and Ray has {found.get(kind, 0.0):g}" for kind, number in wanted.items() if number > found.get(kind, 0.0)
    ]
    if not short:
        return None
    return (
        f"the replicas ask for {'; for '.join(short)}: some wait until another machine joins; "
        "or set fewer replicas, or a smaller num_gpus or num_cpus"
    )


def left_asleep(config: ServeConfig, *, cpu: bool) -> list[str]:
    """Further models that start without a replica: they may sleep, and our own cluster has no GPUs left for theirs.

    Those that come first in the configuration get one. In a joined cluster all do: it may grow.
    """
    sleeping = {name: gpus_of_replica(one) for name in config.models if (one := config.of(name)).replicas.sleeps}
    if cpu or config.address is not None or not sleeping:
        return []
    left = ray.cluster_resources().get("GPU", 0.0) - sum(one.replicas.min * gpus_of_replica(one) for one in _models(config))
    found = []
    for name, gpus in sleeping.items():
        if gpus > left + 1e-9:
            found.append(name)
        else:
            left -= gpus
    return found


def _require_gpus(wanted: float, found: float) -> None:
    if wanted > found:
        raise ConfigError(
            f"the engine needs {wanted:g} GPUs and this machine shows {found:g}: see nvidia-smi, CUDA_VISIBLE_DEVICES, docker --gpus; "
            "or set fewer replicas, or a smaller num_gpus or engine.tensor_parallel_size"
        )


def _models(config: ServeConfig) -> list[ServeConfig]:
    return [config, *map(config.of, config.models)]
