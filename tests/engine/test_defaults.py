"""What harvester sets of vLLM's arguments by itself, and what replicas may take of a GPU. CUDA is played: no GPU is needed."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harvester.config import ServeConfig, load_config, parse_config
from harvester.engine.launch.defaults import CUDA_SLOTS, CUDA_STEP_TOKENS, check_gpus, described, embedded_defaults, gpu_share
from harvester.engine.shared.state import Count, SharedState
from harvester.errors import ConfigError
from harvester.model_config import ReplicasConfig
from harvester.serve.deployments.turns import turn_on_gpu

pytestmark = pytest.mark.engine
GIB = 1 << 30
H200 = "NVIDIA H200"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes this machine for one with an H200, as far as its defaults ask."""
    import vllm.engine.arg_utils
    import vllm.platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Gpu(Platform):
        _enum = PlatformEnum.CUDA
        device_name, device_type = "cuda", "cuda"
        get_device_name = staticmethod(lambda device_id=0: H200)
        get_device_total_memory = staticmethod(lambda device_id=0: 141 * GIB)

    monkeypatch.setattr(vllm.engine.arg_utils, "current_platform", Gpu())
    monkeypatch.setattr(vllm.platforms, "_current_platform", Gpu())


def sizes(engine: dict[str, Any], **model: Any) -> tuple[int, int]:
    """Slots and step that a server has with these arguments, as vLLM fits them to a model."""
    from vllm.usage.usage_lib import UsageContext

    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.vllm.frontend.answers import with_parsers
    from harvester.engine.vllm.launch import namespace

    about = {"model": "m", "max_model_len": 32768, "is_multimodal_model": False, "is_mm_prefix_lm": False} | model
    no_parsers = {"reasoning_parser": "none", "tool_parser": "none"}  # there is no model to see its family by
    values = engine_arguments(ServeConfig(engine=engine | no_parsers), "/model", "m", cpu=False, embedded=False)
    _, found = namespace(with_parsers(values, lambda plain: pytest.fail("no parser needs the model")))
    found.enable_chunked_prefill = found.enable_chunked_prefill is not False
    parallel: Any = SimpleNamespace(use_batched_dp_moe=False)
    asked: Any = SimpleNamespace(**about)
    found._set_default_max_num_seqs_and_batched_tokens_args(UsageContext.OPENAI_API_SERVER, asked, parallel)
    assert found.max_num_seqs is not None
    assert found.max_num_batched_tokens is not None
    return found.max_num_seqs, found.max_num_batched_tokens


def test_on_cuda_slots_and_steps_are_harvesters_where_the_user_names_none(gpu: None) -> None:
    assert sizes({}) == (256, 2048)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"max_num_seqs": 64}, (64, 2048)),
        ({"max_num_batched_tokens": 8192}, (256, 8192)),
        ({"performance_mode": "throughput"}, (512, 4096)),
        ({"enable_chunked_prefill": False}, (256, 32768)),
    ],
    ids=["slots", "step", "throughput", "whole prompts"],
)
def test_what_the_user_names_stands_and_vllm_fits_the_rest(gpu: None, engine: dict[str, Any], expected: tuple[int, int]) -> None:
    assert sizes(engine) == expected


def test_a_model_whose_images_must_not_be_cut_gets_a_step_that_holds_one(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setattr(EngineArgs, "_get_min_mm_batched_tokens", staticmethod(lambda config: (2496, "video")))
    assert sizes({}, is_multimodal_model=True, is_mm_prefix_lm=True) == (256, 2496)


def test_on_a_cpu_vllms_own_defaults_are_left_alone() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from harvester.engine.vllm.launch import namespace

    _, found = namespace({"model": "/model"})
    assert found.get_batch_defaults(1) == AsyncEngineArgs.get_batch_defaults(1)


def test_the_start_says_what_harvester_chose_and_nothing_that_the_user_did() -> None:
    assert f"max_num_seqs={CUDA_SLOTS}, max_num_batched_tokens={CUDA_STEP_TOKENS}" in described(ServeConfig(), cpu=False, embedded=False)
    given = ServeConfig(engine={"max_num_seqs": 64, "max_num_batched_tokens": 4096}, num_gpus=0.5)
    assert described(given, cpu=False, embedded=False) == (
        "cuda, with gpu_memory_utilization=0.46 (defaults; `engine:` in the config overrides)"
    )
    assert described(ServeConfig(), cpu=True, embedded=True) == (
        "cpu, with max_num_seqs=16, max_num_batched_tokens=512, kv_cache_memory_bytes=1073741824 "
        "(defaults; `engine:` in the config overrides)"
    )
    assert described(ServeConfig(engine={"max_num_seqs": 64, "max_num_batched_tokens": 4096}), cpu=False, embedded=False) == (
        "cuda, sized by the config"
    )


def test_the_embedded_model_is_served_in_float32_on_a_cpu_alone() -> None:
    from harvester.engine.launch.arguments import engine_arguments

    on_cpu, on_cuda = (engine_arguments(ServeConfig(), "/model", "m", cpu=cpu, embedded=True) for cpu in (True, False))
    assert on_cpu["dtype"] == "float32"
    assert "dtype" not in on_cuda
    assert on_cpu["max_model_len"] == on_cuda["max_model_len"] == 8192
    assert embedded_defaults(cpu=False).keys() == {"max_model_len"}


# -- a GPU for several replicas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "devices", "expected"), [(None, 1, 8.0), (None, 2, 16.0), (2, 2, 16.0), (0.5, 1, 4.0)])
def test_a_replica_with_a_share_of_a_gpu_counts_its_share_of_the_time(share: float | None, devices: int, expected: float) -> None:
    from harvester.engine.frontend.offline import OfflineEngine

    model = SimpleNamespace(get_diff_sampling_param=dict)
    llm: Any = SimpleNamespace(devices=devices, model_config=model, get_tokenizer=lambda: SimpleNamespace(encode=list))
    without: Any = SimpleNamespace(marks=())
    shared = SharedState.make()
    offline = OfflineEngine(llm, without, without, None, "m", 4, shared, gpu_share=gpu_share(share))
    try:
        shared.add(Count.JOBS_S, 8.0)
        assert offline.harvested_s == expected
    finally:
        offline.close()
        shared.remove()


@pytest.mark.parametrize(("share", "memory"), [(0.5, 0.46), (0.3, 0.27), (1, None), (None, None)])
def test_a_replica_with_a_share_of_a_gpu_takes_its_share_of_the_memory(share: float | None, memory: float | None) -> None:
    from harvester.engine.launch.arguments import engine_arguments

    def taken(**engine: Any) -> object:
        config = ServeConfig(num_gpus=share, replicas=ReplicasConfig(min=2, max=2), engine=engine)
        return engine_arguments(config, "/model", "m", cpu=False, embedded=False).get("gpu_memory_utilization")

    assert taken() == memory
    assert taken(gpu_memory_utilization=0.4) == 0.4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_gpus": 0}, "num_gpus=0 is less than the 1 GPUs of one engine"),
        ({"num_gpus": 0.5, "engine": {"tensor_parallel_size": 2}}, "num_gpus=0.5 is less than the 2 GPUs of one engine"),
        ({"num_gpus": 1, "engine": {"pipeline_parallel_size": 2}}, "num_gpus=1 is less than the 2 GPUs of one engine"),
        ({"num_gpus": 1.5}, "num_gpus=1.5 must be a whole number above 1"),
        (
            {"num_gpus": 0.5, "replicas": 2, "engine": {"gpu_memory_utilization": 0.6}},
            "engine.gpu_memory_utilization=0.6 is too much for 2 replicas on one GPU (num_gpus=0.5); give at most 0.46,",
        ),
        (
            {"num_gpus": 0.3, "replicas": 8, "engine": {"gpu_memory_utilization": 0.4}},
            "engine.gpu_memory_utilization=0.4 is too much for 3 replicas on one GPU (num_gpus=0.3); give at most 0.3,",
        ),
    ],
)
def test_what_cannot_fit_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_gpus(parse_config(values, "test"))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_beside_other_models_a_replica_keeps_to_its_share_of_a_gpu() -> None:
    alone = parse_config({"num_gpus": 0.4, "engine": {"gpu_memory_utilization": 0.6}}, "test")
    check_gpus(alone)
    with pytest.raises(ConfigError, match=r"=0.6 is more than the share of a GPU \(num_gpus=0.4\).*; give at most 0.36, or leave it out"):
        check_gpus(alone, beside_others=True)
    check_gpus(parse_config({"num_gpus": 0.4, "engine": {"gpu_memory_utilization": 0.4}}, "test"), beside_others=True)
    check_gpus(parse_config({"num_gpus": 1, "engine": {"gpu_memory_utilization": 0.95}}, "test"), beside_others=True)


def test_a_server_refuses_what_cannot_fit_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harvester.ports import free_port
    from harvester.serve import server

    monkeypatch.setattr(server, "device_of", lambda config: "cuda")
    values = {"num_gpus": 0.5, "replicas": 2, "engine": {"gpu_memory_utilization": 0.6}, "port": free_port()}
    events: list[str] = []
    with pytest.raises(ConfigError, match="is too much for 2 replicas on one GPU"):
        server.run(parse_config(values, "test"), tmp_path, lambda kind, fields: events.append(kind))
    assert events == []
    assert not (tmp_path / "server.json").exists()


def test_a_server_names_its_process_from_its_start_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may load for many minutes, and `harvester stop` is to find the process meanwhile."""
    from harvester.ports import free_port
    from harvester.serve import server

    told: list[dict[str, Any]] = []

    def on_event(kind: str, fields: dict[str, Any]) -> None:
        told.append(json.loads((tmp_path / "server.json").read_text()))
        raise ConfigError("enough")

    with pytest.raises(ConfigError, match="enough"):
        server.run(parse_config({"port": free_port()}, "test"), tmp_path, on_event)
    assert [(one["pid"], one["state"]) for one in told] == [(os.getpid(), str(tmp_path))]
    assert not (tmp_path / "server.json").exists()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"num_gpus": 0.5, "replicas": 2},
        {"num_gpus": 0.5, "replicas": 1, "engine": {"gpu_memory_utilization": 0.9}},
        {"num_gpus": 0.5, "replicas": 2, "engine": {"gpu_memory_utilization": 0.45}},
        {"num_gpus": 2, "engine": {"tensor_parallel_size": 2}},
        {"num_gpus": 0, "engine": {"distributed_executor_backend": "ray"}},
    ],
)
def test_what_fits_is_left_alone(values: dict[str, Any]) -> None:
    check_gpus(parse_config(values, "test"))


@pytest.mark.parametrize("name", ["h200-qwen3-8b", "h200x4-qwen3-8b"])
def test_the_shipped_configs_fit(name: str) -> None:
    check_gpus(load_config(Path(__file__).resolve().parents[2] / "configs" / f"{name}.yaml"))


@pytest.mark.parametrize(("share", "together"), [(0.5, 1), (1, 2), (None, 2)])
async def test_engines_that_share_a_gpu_start_one_after_the_other(tmp_path: Path, share: float | None, together: int) -> None:
    now, most, left = 0, 0, asyncio.Event()

    async def start() -> None:
        nonlocal now, most
        async with turn_on_gpu(share, tmp_path):
            now += 1
            most = max(most, now)
            for _ in range(100):  # turns of the loop in which the other may come in
                await asyncio.sleep(0)
            if together == now:
                left.set()
            await left.wait()
            now -= 1

    await asyncio.wait_for(asyncio.gather(start(), start()), 30)
    assert most == together


# -- the name of the device ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module of CUDA platforms over an NVML with one H200, and a torch that refuses every call to CUDA."""
    import torch

    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
    module = importlib.import_module("vllm.platforms.cuda")
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: index)
    nvml.nvmlDeviceGetName = lambda handle: H200
    monkeypatch.setattr(module, "pynvml", nvml)

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("the front end called CUDA")

    for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "get_device_name", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    yield module
    sys.modules.pop("vllm.platforms.cuda", None)


@pytest.mark.parametrize(("platform", "name"), [("NvmlCudaPlatform", H200), ("NonNvmlCudaPlatform", "CUDA without NVML")])
def test_the_front_end_names_the_gpu_without_a_call_to_cuda(
    cuda_platform: Any, monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    import vllm.platforms

    from harvester.engine.launch.profiles import device_name

    monkeypatch.setattr(vllm.platforms, "_current_platform", getattr(cuda_platform, platform)())
    assert device_name() == name


def test_the_front_end_names_a_processor_and_its_cores() -> None:
    from harvester.engine.launch.profiles import device_name

    assert device_name().rsplit(" x", 1)[1].isdigit()
