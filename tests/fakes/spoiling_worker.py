"""harvester's worker, which now and then writes into a KV block that it has no business with."""

from __future__ import annotations

import random
from typing import Any

from harvester.engine.vllm.worker.workers import HarvestCpuWorker


class SpoilingWorker(HarvestCpuWorker):
    """Imported by name in the worker process."""

    _rng = random.Random(5)

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._rng.random() < 0.2:
            blocks = self.vllm_config.cache_config.num_gpu_blocks
            for cache in self.model_runner.kv_caches:
                axis = next(i for i, size in enumerate(cache.shape) if size == blocks)
                cache.movedim(axis, 0)[self._rng.randrange(1, blocks)] += 1.0
        return super().execute_model(scheduler_output)
