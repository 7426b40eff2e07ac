"""harvester's worker, whose host memory can be made to rot."""

from __future__ import annotations

import random
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from harvester.engine.vllm.worker.workers import HarvestCpuWorker


class FaultyWorker(HarvestCpuWorker):
    """Imported by name in the worker process."""

    _rng = random.Random(3)

    def spoil(self) -> None:
        """Flip a bit in a tenth of the host blocks that were written."""
        connector: Any = get_kv_transfer_group()
        copier = connector.copies.copier
        for slot in list(copier._sums):
            if self._rng.random() < 0.1:
                copier.host[slot, self._rng.randrange(copier.block_bytes)] ^= 1
