"""Whether Ray's machines have what the replicas of a configuration ask for."""

from __future__ import annotations

import pytest
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from harvester.config import ServeConfig
from harvester.errors import ConfigError
from harvester.serve.machine import device, room

MACHINE = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("given", "has_cpu_engine", "said"),
    [
        ({"replicas": 2}, False, None),
        ({"replicas": {"min": 0, "max": 9}}, False, None),
        ({"replicas": 3}, False, "3 GPUs, and Ray has 2"),
        ({"replicas": 3, "num_gpus": 0.5}, False, None),
        ({"replicas": 3}, True, None),
        ({"replicas": 3, "num_cpus": 4.0}, True, "12 CPUs, and Ray has 8"),
        ({"engine": {"tensor_parallel_size": 4}, "num_cpus": 9.0}, False, "9 CPUs, and Ray has 8; for 4 GPUs, and Ray has 2"),
        ({"models": {"second": {"replicas": 2}}}, False, "3 GPUs, and Ray has 2"),
    ],
    ids=["room for all", "none is wanted yet", "too few GPUs", "two on a GPU", "no GPU is used", "too few CPUs", "both", "of two models"],
)
def test_what_ray_lacks_for_the_smallest_number_of_replicas_is_said(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], has_cpu_engine: bool, said: str | None
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: MACHINE)
    found = room.shortage(ServeConfig.model_validate(given | {"address": "auto"}), cpu=has_cpu_engine)
    assert (found is None) == (said is None)
    assert said is None or f"ask for {said}: some wait" in str(found)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"engine": {"tensor_parallel_size": 2}}, 2),
        ({"replicas": 2}, 2),
        ({"replicas": {"min": 0, "max": 1}, "engine": {"tensor_parallel_size": 2}}, 2),
        ({"models": {"second": {}}}, 2),
        ({}, None),
        ({"replicas": {"min": 1, "max": 4}}, None),
        ({"replicas": 2, "num_gpus": 0.5}, None),
    ],
    ids=["two of a replica", "two replicas", "none is wanted yet", "two models", "one", "more later", "two on a GPU"],
)
def test_a_cluster_of_our_own_without_enough_gpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], wanted: int | None
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    config = ServeConfig.model_validate(given)
    assert room.shortage(config, cpu=True) is None
    if wanted is None:
        assert room.shortage(config, cpu=False) is None
        return
    with pytest.raises(ConfigError, match=rf"needs {wanted} GPUs and this machine shows 1: see nvidia-smi"):
        room.shortage(config, cpu=False)


TURNS = {"min": 0, "max": 1}


@pytest.mark.parametrize(
    ("given", "late"),
    [
        ({"models": {"a": {"replicas": TURNS}, "b": {"replicas": TURNS}}}, ["b"]),
        ({"models": {"a": {"replicas": TURNS, "num_gpus": 0.5}, "b": {"replicas": TURNS, "num_gpus": 0.5}}}, []),
        ({"models": {"a": {"replicas": TURNS, "num_gpus": 2}, "b": {"replicas": TURNS}}}, ["a"]),
        ({"replicas": 2, "models": {"a": {"replicas": TURNS}}}, ["a"]),
        ({"replicas": {"min": 1, "max": 2}, "models": {"a": {"replicas": TURNS}, "b": {}}}, ["a"]),
        ({"address": "auto", "models": {"a": {"replicas": TURNS}, "b": {"replicas": TURNS}}}, []),
    ],
    ids=["more than GPUs", "two on a GPU", "one that fits after one that does not", "all taken", "a fixed one first", "a joined cluster"],
)
def test_models_that_may_sleep_start_without_a_replica_where_no_gpu_is_left(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], late: list[str]
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: MACHINE)
    config = ServeConfig.model_validate(given)
    assert room.left_asleep(config, cpu=False) == late
    assert room.left_asleep(config, cpu=True) == []


def test_ray_counts_enough_cpus_on_a_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    given = {"replicas": {"min": 1, "max": 3}, "num_cpus": 2.5, "models": {"second": {"replicas": 2}}}
    assert room.own_cpus(ServeConfig.model_validate(given)) == 10
    assert room.own_cpus(ServeConfig()) == 2


@pytest.mark.parametrize(("visible", "found"), [(None, 4), ("0,1", 2), ("", 0), ("0,1,2,3,4", 4)], ids=["all", "two", "none", "unknown"])
def test_gpus_here_are_those_that_ray_counts(monkeypatch: pytest.MonkeyPatch, visible: str | None, found: int) -> None:
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", staticmethod(lambda: 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device.gpus_here() == found
