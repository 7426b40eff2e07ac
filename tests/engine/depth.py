"""Two steps in flight on a CPU, as on CUDA: vLLM's CPU platform turns asynchronous scheduling off; here it stays as it was asked for."""

from __future__ import annotations

from typing import Any


def keep_asynchronous_scheduling() -> None:
    """Call before the engine's config is made. The engine core and the workers are sent that config as it is."""
    from vllm.platforms.cpu import CpuPlatform

    platform: Any = CpuPlatform
    check = platform.check_and_update_config.__func__

    def checked(cls: type[Any], vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    platform.check_and_update_config = classmethod(checked)
