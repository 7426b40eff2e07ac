"""What vLLM is asked for and cannot do under harvester is refused, or runs without a part of harvester, in one line each."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

from harvester.config import ServeConfig
from harvester.errors import ConfigError
from tests.engine.kinds import plain, recurrent

pytestmark = pytest.mark.engine

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
FOREIGN = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20}}
CHECKPOINTS = {"enabled": True, "host_gib": 0.01}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"plain": plain(folder), "recurrent": recurrent(folder)}


@pytest.fixture
def keeps_async(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU turns async scheduling off after vLLM has decided; here its decision stands, as on CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.platforms.cpu import CpuPlatform

    off = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def kept(cls: Any, vllm_config: Any) -> None:
        decided = vllm_config.scheduler_config.async_scheduling
        off(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = decided

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(kept))


def configured(model: Path, shared: Path, checkpoint: dict[str, Any] | None = None, **engine: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harvester.engine.launch.arguments import engine_arguments
        from harvester.engine.vllm.launch import configure

        wanted = {"dtype": "float32", "max_model_len": 512} | engine
        config = ServeConfig.model_validate({"engine": wanted, "checkpoint": checkpoint or {}})
        return configure(engine_arguments(config, str(model), "tiny", cpu=True, embedded=False, shared=shared))[1]


def off(vllm_config: Any) -> bool:
    """Whether no step ends early; workers and scheduler must agree on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harvester.engine.vllm.platform import additional

    ours = additional(vllm_config)
    told = ours["harvester"]["schedule"]["safepoints"] == "off"
    assert told == ("harvester_safepoints" not in ours)
    return told


def test_harvester_leaves_async_scheduling_to_vllm_unless_it_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harvester.engine.launch.arguments import engine_arguments
    assert engine_arguments(ServeConfig(), "/model", "tiny", cpu=False, embedded=False)["async_scheduling"] is None
    told = ServeConfig.model_validate({"engine": {"async_scheduling": False}})
    assert engine_arguments(told, "/model", "tiny", cpu=False, embedded=False)["async_scheduling"] is False


@pytest.mark.usefixtures("keeps_async")
@pytest.mark.parametrize(
    ("engine", "scheduler"),
    [
        ({}, "AsyncHarvestScheduler"),
        ({"async_scheduling": False}, "HarvestScheduler"),
        ({"speculative_config": DRAFTS}, "HarvestScheduler"),
        ({"runner": "pooling", "convert": "embed"}, "HarvestScheduler"),
        ({"scheduler_cls": "somebody.Elses"}, "Elses"),
    ],
    ids=["default", "told off", "drafts", "pooling", "another scheduler"],
)
def test_the_scheduler_is_of_the_kind_that_vllm_decides_on(
    engine: dict[str, Any], scheduler: str, models: dict[str, Path], tmp_path: Path
) -> None:
    found = configured(models["plain"], tmp_path / "shared_state", **engine).scheduler_config
    assert str(found.scheduler_cls).rpartition(".")[2] == scheduler
    assert scheduler == "Elses" or found.async_scheduling == scheduler.startswith("Async")


def test_several_engine_cores_are_refused_and_replicas_named(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_parallel_size=2.*replicas: 2"):
        configured(models["plain"], tmp_path / "shared_state", data_parallel_size=2)


@pytest.mark.parametrize(
    ("model", "engine", "why"),
    [
        ("recurrent", {}, "recurrent layers"),
        ("plain", {"speculative_config": DRAFTS}, "speculative decoding"),
        ("plain", {"pipeline_parallel_size": 2}, "pipeline parallel"),
        ("plain", {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, "workers on several machines"),
        ("plain", {"runner": "pooling", "convert": "embed"}, "pooling models"),
        ("plain", {"kv_transfer_config": FOREIGN}, "kv_transfer_config"),
        ("plain", {"offload_group_size": 2}, "weight offloading"),
    ],
    ids=["recurrent", "drafts", "pipeline", "several machines", "pooling", "another connector", "weights"],
)
def test_safepoints_are_off_where_a_step_cannot_be_taken_back_and_the_log_says_why(
    model: str, engine: dict[str, Any], why: str, models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "harvester"):
        assert off(configured(models[model], tmp_path / "shared_state", **engine))
    lines = [record.getMessage() for record in caplog.records if record.name == "harvester.engine.vllm.launch"]
    assert len(lines) == 1
    assert lines[0].startswith("safepoints are off")
    assert why in lines[0]


def test_nothing_is_off_for_a_plain_model_with_adapters(models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "harvester"):
        found = configured(models["plain"], tmp_path / "shared_state", CHECKPOINTS, enable_lora=True)
    assert not off(found)
    assert found.kv_transfer_config.kv_connector == "CheckpointConnector"
    assert [record for record in caplog.records if record.name == "harvester.engine.vllm.launch"] == []


@pytest.mark.parametrize(
    ("model", "engine"),
    [("recurrent", {}), ("plain", {"speculative_config": DRAFTS}), ("plain", {"kv_transfer_config": FOREIGN})],
    ids=["recurrent", "drafts", "another connector"],
)
def test_checkpoints_that_cannot_be_are_off_and_the_log_says_so(
    model: str, engine: dict[str, Any], models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "harvester"):
        transfer = configured(models[model], tmp_path / "shared_state", CHECKPOINTS, **engine).kv_transfer_config
    assert transfer is None or transfer.kv_connector == FOREIGN["kv_connector"]
    assert any(record.getMessage().startswith("KV checkpoints are off") for record in caplog.records)


def test_an_engine_with_vllms_own_scheduler_is_left_as_it_is(models: dict[str, Path], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harvester.engine.vllm.launch import configure
    found = configure({"model": str(models["plain"]), "dtype": "float32", "max_model_len": 512})[1]
    assert found.scheduler_config.scheduler_cls is None
