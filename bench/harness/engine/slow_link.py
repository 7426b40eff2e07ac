"""Checkpoints on a CPU whose copies take as long as over a link to host memory, and cost the step beside them nothing.

On a CPU a block is copied at the speed of memory, so that copying ahead of time has little to win. Here each copy is made as always and
then waited for; who waits computes nothing, as a copy engine takes no time of a processor. One block a direction at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker

from harvester.engine.checkpoints.spec import CheckpointSpec
from harvester.engine.checkpoints.worker.copier import HostCopier


class LinkCopier(HostCopier):
    """``block_s``: least time of a block."""

    def __init__(self, caches: CanonicalKVCaches, slots: int, verify: bool, block_s: float) -> None:
        self._block_s = block_s
        self._outwards, self._back = threading.Lock(), threading.Lock()
        super().__init__(caches, slots, verify)

    def _store(self, *block: Any) -> bool:
        with self._taking(self._outwards):
            return super()._store(*block)

    def _load(self, *block: Any) -> bool:
        with self._taking(self._back):
            return super()._load(*block)

    @contextmanager
    def _taking(self, direction: threading.Lock) -> Iterator[None]:
        with direction:
            began_s = time.perf_counter()
            yield
            time.sleep(max(0.0, self._block_s - (time.perf_counter() - began_s)))


class LinkSpec(CheckpointSpec):
    """Imported by name (``spec_name``); ``link_block_s`` is one of its further values."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = LinkCopier(kv_caches, self.num_chunks, self.verify, float(self.extra_config["link_block_s"]))
        return self._worker
