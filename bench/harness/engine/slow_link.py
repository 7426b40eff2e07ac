"""Checkpoints on a CPU whose copies take as long as over a link to host memory, and do not slow the concurrent step.

A CPU copies a block at the speed of memory, so that copying ahead of time gains little. Here each copy is made as usual, and then the
copying thread sleeps until the copy's least time is over: like a copy engine, it uses no processor meanwhile. One block a direction at a
time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harvester.engine.checkpoints.worker.copier import HostCopier
from harvester.engine.checkpoints.worker.layout import Pages
from harvester.engine.vllm import connector


class LinkCopier(HostCopier):
    """``block_s``: least time of a block."""

    def __init__(self, pages: list[Pages], slots: int, verify: bool, block_s: float) -> None:
        self._block_s = block_s
        self._outwards, self._back = threading.Lock(), threading.Lock()
        super().__init__(pages, slots, verify)

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


class CheckpointConnector(connector.CheckpointConnector):
    """Imported by name (``kv_connector_module_path``); ``link_block_s`` is one of its further values."""

    def copier(self, pages: list[Pages], slots: int, verify: bool) -> LinkCopier:
        return LinkCopier(pages, slots, verify, float(self.extra["link_block_s"]))
