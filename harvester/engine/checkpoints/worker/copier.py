"""Copies of KV blocks between the KV cache and host memory in a thread of a worker, a block at a time, for workers on CPU.

What a step waits for (`wait`) is copied by the thread that waits. All other copies run beside the steps, within the number of blocks that
each allows, loads first, since a request waits for them. The thread avoids the cores that the worker computes on, if there are others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from harvester.engine.checkpoints.jobs import Block
from harvester.engine.checkpoints.worker.hostmemory import HostMemory
from harvester.engine.checkpoints.worker.layout import Pages, slot_bytes
from harvester.engine.checkpoints.worker.transfers import Job, StepCopier, Transfers


@dataclass(slots=True)
class _Layer:
    """``pages``: [num_blocks, page_bytes]; ``place``: where a page lies in a host slot."""

    pages: np.ndarray
    place: slice


class HostCopier(StepCopier):
    """Host memory of ``slots`` blocks, and the thread. Used by the worker's own thread only.

    With ``verify`` each host block has a checksum, taken from the KV block it was copied from and compared before it is copied back and
    after: a block that changed on the way, or in host memory, makes its job fail.
    """

    def __init__(self, pages: list[Pages], slots: int, verify: bool) -> None:
        self._layers = [_layer(each) for each in pages]
        self.block_bytes = slot_bytes(pages)
        self._memory = HostMemory(slots, self.block_bytes)
        self.host = self._memory.rows  # [slots, block_bytes]
        self._sums: dict[int, int] | None = {} if verify else None
        self._change = threading.Condition()
        self.transfers = Transfers(self.block_bytes)  # guarded by the condition
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="kv-copies", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._change:
            self.transfers.add(job)
            self._change.notify_all()

    def allow(self, blocks: int | None) -> None:
        """From now on the thread may copy ``blocks`` blocks; None: no bound."""
        with self._change:
            self.transfers.allowed = blocks
            self._change.notify_all()

    def get_finished(self) -> list[Job]:
        with self._change:
            return self.transfers.take_finished()

    def wait(self, numbers: set[int]) -> None:
        """Return when these jobs are finished; unknown ones count as finished. Copies the blocks that the thread has not begun."""
        while True:
            with self._change:
                left = [self.transfers.jobs[number] for number in numbers if number in self.transfers.jobs]
                if not left:
                    return
                job = next((job for job in left if job.begun < len(job.blocks)), None)
                if job is None:
                    self._change.wait()
                    continue
                blocks = self.transfers.claim(job)
            self._copy(job, blocks)

    def shutdown(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(timeout=5.0)

    def _work(self) -> None:
        _leave_cores()
        while True:
            while not self.transfers.queue and not self._closed and self._memory.prepare():
                pass
            with self._change:
                while not self._closed and (not self.transfers.queue or self.transfers.allowed == 0):
                    self._change.wait()
                if self._closed:
                    return
                if self.transfers.allowed is not None:
                    self.transfers.allowed -= 1
                job = self.transfers.queue[0]
                blocks = self.transfers.claim(job)
            self._copy(job, blocks)

    def _copy(self, job: Job, blocks: list[Block]) -> None:
        began_s = time.perf_counter()
        ok = True
        for block, slot in blocks:
            ok &= (self._store if job.store else self._load)(block, slot)
        with self._change:
            self.transfers.ended(job, len(blocks), ok, time.perf_counter() - began_s)
            self._change.notify_all()

    def _store(self, block: int, slot: int) -> bool:
        self._memory.use(slot)
        row: np.ndarray = self.host[slot]
        for layer in self._layers:
            row[layer.place] = layer.pages[block]
        if self._sums is None:
            return True
        self._sums[slot] = zlib.crc32(row.data)
        return self._sums[slot] == _sum(self._layers, block)

    def _load(self, block: int, slot: int) -> bool:
        row = self.host[slot]
        if self._sums is not None and self._sums.get(slot) != zlib.crc32(row.data):
            return False
        for layer in self._layers:
            layer.pages[block] = row[layer.place]
        return self._sums is None or self._sums[slot] == _sum(self._layers, block)


def _leave_cores() -> None:
    """Move the calling thread to cores that this process was given and does not compute on: vLLM binds its workers to theirs."""
    if sys.platform == "linux":
        with suppress(OSError):
            others = os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0)
            if others:
                os.sched_setaffinity(0, others)


def _layer(pages: Pages) -> _Layer:
    return _Layer(pages.tensor.numpy().view(np.uint8), pages.place)


def _sum(layers: list[_Layer], block: int) -> int:
    found = 0
    for layer in layers:
        found = zlib.crc32(np.ascontiguousarray(layer.pages[block]).data, found)
    return found
