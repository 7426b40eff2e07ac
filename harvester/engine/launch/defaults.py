"""Harvester's defaults for vLLM's arguments, by device, and what share of a GPU a replica may take.

Figures behind the values for CUDA: `docs/design/0021-gpu-defaults.md`. Everything here yields to the config's ``engine`` section.
"""

from __future__ import annotations

import math
from typing import Any

from harvester.config import ServeConfig
from harvester.errors import ConfigError

CPU_DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "block_size": 32,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,  # bounds how long an arrival waits for the step before it
    "kv_cache_memory_bytes": 1 << 30,  # vLLM's own default is half the machine
    "gpu_memory_utilization": 0.2,  # on CPU: the share of memory that must be free at start
}
EMBEDDED_DEFAULTS: dict[str, Any] = {"dtype": "float32", "max_model_len": 8192}

# On CUDA these two replace vLLM's own defaults (`HarvestEngineArgs` in `harvester.engine.vllm.launch`). They are no arguments, so that vLLM
# still fits them to the model: one without chunked prefill gets longer steps, one whose images must not be cut gets room for the largest,
# and `performance_mode: throughput` doubles both.
# 2,048 tokens are seven times what makes a step on an H100 compute-bound. An arrival may wait for the end of such a step: 60 ms with an 8B
# model, a quarter of a second with a 32B one. vLLM's default is 8,192.
CUDA_STEP_TOKENS = 2048
# Planning a step takes 2 ms with 256 requests, and 13 ms with 1,024, vLLM's default: longer than many steps that only decode. With 1,024
# requests each also has a quarter of the KV.
CUDA_SLOTS = 256
SIZES = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "gpu_memory_utilization")
GPU_MEMORY = 0.92  # vLLM's `gpu_memory_utilization`; a replica with a share of a GPU gets that share of it


def engine_defaults(config: ServeConfig, *, cpu: bool, embedded: bool) -> dict[str, Any]:
    """Default arguments, below the user's. On CUDA, slots and step tokens are not among them: see `CUDA_STEP_TOKENS`."""
    values = CPU_DEFAULTS if cpu else _memory(config.num_gpus)
    return values | (embedded_defaults(cpu=cpu) if embedded else {})


def embedded_defaults(*, cpu: bool) -> dict[str, Any]:
    """Defaults of the embedded model. float32 is for CPUs: on CUDA vLLM takes bfloat16, or float16 on an older GPU."""
    return {name: value for name, value in EMBEDDED_DEFAULTS.items() if cpu or name != "dtype"}


def gpu_share(num_gpus: float | None) -> float:
    """Part of its GPU that a replica with `ServeConfig.num_gpus` has; 1 for one with whole GPUs."""
    return num_gpus if num_gpus is not None and 0 < num_gpus < 1 else 1.0


def _memory(num_gpus: float | None) -> dict[str, Any]:
    share = gpu_share(num_gpus)
    return {} if share == 1.0 else {"gpu_memory_utilization": math.floor(100 * GPU_MEMORY * share) / 100}


def described(config: ServeConfig, *, cpu: bool, embedded: bool) -> str:
    """One line for the start: the sizes that are harvester's choice, not the user's."""
    values = engine_defaults(config, cpu=cpu, embedded=embedded)
    if cpu:
        values.pop("gpu_memory_utilization")  # on a CPU it sets no size
    else:
        times = 2 if config.engine.get("performance_mode") == "throughput" else 1
        values = {"max_num_seqs": times * CUDA_SLOTS, "max_num_batched_tokens": times * CUDA_STEP_TOKENS} | values
    shown = ", ".join(f"{name}={value}" for name, value in values.items() if name in SIZES and name not in config.engine)
    device = "cpu" if cpu else "cuda"
    return f"{device}, with {shown} (defaults; `engine:` in the config overrides)" if shown else f"{device}, sized by the config"


def check_gpus(config: ServeConfig, *, beside_others: bool = False) -> None:
    """Raise `ConfigError` where `num_gpus` of one replica cannot hold its engine, or the replicas of one GPU want more than its memory.

    ``beside_others``: replicas of other models may be on the same GPU, so that each keeps to its own share.
    """
    share = config.num_gpus
    if share is None or config.engine.get("distributed_executor_backend") == "ray":  # Ray then places the workers by itself
        return
    parallel = gpus_of_engine(config)
    if share < parallel and not (parallel == 1 and share > 0):
        raise ConfigError(f"num_gpus={share:g} is less than the {parallel} GPUs of one engine (tensor x pipeline size); leave num_gpus out")
    if share > 1 and share != int(share):
        raise ConfigError(f"num_gpus={share:g} must be a whole number above 1; only one GPU can be shared")
    given = config.engine.get("gpu_memory_utilization")
    if beside_others and share < 1 and given is not None and float(given) > share and config.engine.get("kv_cache_memory_bytes") is None:
        raise ConfigError(
            f"engine.gpu_memory_utilization={given} is more than the share of a GPU (num_gpus={share:g}), which other models may have the "
            f"rest of; give at most {_memory(share)['gpu_memory_utilization']:g}, or leave it out"
        )
    together = min(math.floor(1 / share + 1e-9), config.replicas.max)
    if given is not None and together * float(given) > 1 and config.engine.get("kv_cache_memory_bytes") is None:
        most = _memory(1 / together)["gpu_memory_utilization"]
        raise ConfigError(
            f"engine.gpu_memory_utilization={given} is too much for {together} replicas on one GPU (num_gpus={share:g}); "
            f"give at most {most:g}, or leave it out"
        )


def gpus_of_replica(config: ServeConfig) -> float:
    """GPUs that a replica asks of Ray."""
    return config.num_gpus if config.num_gpus is not None else gpus_of_engine(config)


def gpus_of_engine(config: ServeConfig) -> int:
    return int(config.engine.get("tensor_parallel_size", 1)) * int(config.engine.get("pipeline_parallel_size", 1))
