"""Copies of KV blocks between the KV cache and host memory in a thread of a worker, a block at a time, for workers on CPU.

What a step waits for (`wait`) is copied by the thread that waits. All else goes on beside the steps, within the blocks that each allows:
first what is read back, since a request waits for it. The thread keeps off the cores that the worker computes on, where there are others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from harvester.engine.checkpoints.hostmemory import HostMemory


@dataclass(slots=True)
class _Job:
    number: int
    store: bool
    blocks: list[tuple[int, int, int]]  # KV cache group, KV block, host slot
    begun: int = 0
    done: int = 0
    seconds: float = 0.0
    ok: bool = True


@dataclass(slots=True)
class _Layer:
    """Of one KV cache group. ``pages``: [num_blocks, page_bytes]; ``place``: where a page lies in a host slot."""

    pages: np.ndarray
    place: slice


@dataclass(slots=True)
class _State:
    """Guarded by the condition."""

    loads: deque[_Job] = field(default_factory=deque)  # with blocks that nobody has begun
    stores: deque[_Job] = field(default_factory=deque)
    jobs: dict[int, _Job] = field(default_factory=dict)  # not finished
    finished: list[TransferResult] = field(default_factory=list)
    allowed: int | None = None  # blocks that the thread may still copy; None: no bound
    closed: bool = False

    @property
    def queue(self) -> deque[_Job]:
        """Whose first job is the next."""
        return self.loads or self.stores


class HostCopier(OffloadingWorker):  # type: ignore[misc]
    """Host memory of ``slots`` blocks, and the thread. Used by the worker's own thread only.

    With ``verify`` each host block has a checksum, taken from the KV block it was copied from and compared before it is copied back and
    after: a block that changed on the way, or in host memory, makes its job fail.
    """

    def __init__(self, caches: CanonicalKVCaches, slots: int, verify: bool) -> None:
        self._groups = [_layers(caches, group) for group in range(len(caches.group_data_refs))]
        self.block_bytes = max((layers[-1].place.stop for layers in self._groups if layers), default=0)
        self._memory = HostMemory(slots, self.block_bytes)
        self.host = self._memory.rows  # [slots, block_bytes]
        self._sums: dict[int, int] | None = {} if verify else None
        self._change = threading.Condition()
        self._state = _State()
        self._thread = threading.Thread(target=self._work, name="kv-copies", daemon=True)
        self._thread.start()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(_Job(job_id, True, _pairs(src_spec, dst_spec)))

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(_Job(job_id, False, _pairs(dst_spec, src_spec)))

    def _submit(self, job: _Job) -> bool:
        with self._change:
            self._state.jobs[job.number] = job
            if job.blocks:
                (self._state.stores if job.store else self._state.loads).append(job)
            else:
                self._finish(job)
            self._change.notify_all()
        return True

    def allow(self, blocks: int | None) -> None:
        """From now on the thread may copy so many blocks; None: all it has."""
        with self._change:
            self._state.allowed = blocks
            self._change.notify_all()

    def get_finished(self) -> list[TransferResult]:
        with self._change:
            found, self._state.finished = self._state.finished, []
        return found

    def wait(self, job_ids: set[int]) -> None:
        """Return when these are finished; unknown ones are. Copies what the thread has not begun."""
        while True:
            with self._change:
                left = [self._state.jobs[number] for number in job_ids if number in self._state.jobs]
                if not left:
                    return
                found = self._claim(next((job for job in left if job.begun < len(job.blocks)), None))
                if found is None:
                    self._change.wait()
            if found is not None:
                self._copy(*found)

    def shutdown(self) -> None:
        with self._change:
            self._state.closed = True
            self._change.notify_all()
        self._thread.join(timeout=5.0)

    def _work(self) -> None:
        _leave_cores()
        while True:
            while not self._state.queue and not self._state.closed and self._memory.prepare():
                pass
            with self._change:
                while not self._state.closed and (not self._state.queue or self._state.allowed == 0):
                    self._change.wait()
                if self._state.closed:
                    return
                if self._state.allowed is not None:
                    self._state.allowed -= 1
                found = self._claim(self._state.queue[0])
            if found is not None:
                self._copy(*found)

    def _claim(self, job: _Job | None) -> tuple[_Job, int] | None:
        """The next block of the job is the caller's to copy."""
        if job is None:
            return None
        number, job.begun = job.begun, job.begun + 1
        if job.begun == len(job.blocks):
            (self._state.stores if job.store else self._state.loads).remove(job)
        return job, number

    def _copy(self, job: _Job, number: int) -> None:
        began_s = time.perf_counter()
        group, block, slot = job.blocks[number]
        ok = (self._store if job.store else self._load)(self._groups[group], block, slot)
        with self._change:
            job.seconds += time.perf_counter() - began_s
            job.ok &= ok
            job.done += 1
            if job.done == len(job.blocks):
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        del self._state.jobs[job.number]
        self._state.finished.append(TransferResult(job.number, job.ok, len(job.blocks) * self.block_bytes, job.seconds))
        self._change.notify_all()

    def _store(self, layers: list[_Layer], block: int, slot: int) -> bool:
        self._memory.use(slot)
        row: np.ndarray = self.host[slot]
        for layer in layers:
            row[layer.place] = layer.pages[block]
        if self._sums is None:
            return True
        self._sums[slot] = zlib.crc32(row[: layers[-1].place.stop].data)
        return self._sums[slot] == _sum(layers, block)

    def _load(self, layers: list[_Layer], block: int, slot: int) -> bool:
        row = self.host[slot]
        if self._sums is not None and self._sums.get(slot) != zlib.crc32(row[: layers[-1].place.stop].data):
            return False
        for layer in layers:
            layer.pages[block] = row[layer.place]
        return self._sums is None or self._sums[slot] == _sum(layers, block)


def _leave_cores() -> None:
    """Move the calling thread to cores that this process was given and does not compute on: vLLM binds its workers to theirs."""
    if sys.platform == "linux":
        with suppress(OSError):
            others = os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0)
            if others:
                os.sched_setaffinity(0, others)


def _layers(caches: CanonicalKVCaches, group: int) -> list[_Layer]:
    found, begin = [], 0
    for ref in caches.group_data_refs[group]:
        pages = caches.tensors[ref.tensor_idx].tensor.numpy().view(np.uint8)[:, : ref.page_size_bytes]
        found.append(_Layer(pages, slice(begin, begin + ref.page_size_bytes)))
        begin += ref.page_size_bytes
    return found


def _pairs(cache: GPULoadStoreSpec, host: LoadStoreSpec) -> list[tuple[int, int, int]]:
    groups: Iterable[int] = (group for group, size in enumerate(cache.group_sizes) for _ in range(size))
    return [(group, int(block), int(slot)) for group, block, slot in zip(groups, cache.block_ids, host.block_ids, strict=True)]


def _sum(layers: list[_Layer], block: int) -> int:
    found = 0
    for layer in layers:
        found = zlib.crc32(np.ascontiguousarray(layer.pages[block]).data, found)
    return found
