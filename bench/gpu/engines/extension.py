"""What a worker tells of itself: mixed into vLLM's worker by name (``worker_extension_cls``)."""

from __future__ import annotations

from typing import Any

NAME = "bench.gpu.engines.extension.WorkerReport"


class WorkerReport:
    """vLLM's worker owns the attributes."""

    model_runner: Any
    vllm_config: Any

    def chosen(self) -> dict[str, Any]:
        """What vLLM chose for this rank."""
        runner = self.model_runner
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        backends = {layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")}
        return {
            "worker": f"{type(self).__module__}.{type(self).__qualname__}",
            "runner": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "attention": sorted(backends),
        }
