"""Copies of KV blocks between a device's KV cache and host memory, by the device: the thread that launches steps only enqueues them.

A copy begins after all steps launched before the one it is planned beside: those computed what is stored, and may still write to a block
that is loaded into. For copies that a step must wait for (`wait`), the step stream waits on the device; no thread does. Such stores have a
stream of their own: a step's other copies may be gigabytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from harvester.engine.checkpoints.jobs import Block
from harvester.engine.checkpoints.worker.checks import SCRATCH_SLOTS, Checks
from harvester.engine.checkpoints.worker.layout import Pages, slot_bytes
from harvester.engine.checkpoints.worker.pieces import PIECE_BYTES, HostPieces
from harvester.engine.checkpoints.worker.transfers import Job, StepCopier, Transfers
from harvester.engine.worker.device import Batch, CopyDevice, Lane, Mark, Span


class _Layers:
    """Addresses and sizes of the KV caches. Each array: [layers]."""

    def __init__(self, pages: Sequence[Pages]) -> None:
        self.base = np.array([each.tensor.data_ptr() for each in pages], np.int64)
        self.stride = np.array([each.tensor.stride(0) for each in pages], np.int64)
        self.place = np.array([each.place.start for each in pages], np.int64)
        self.bytes = np.array([each.place.stop - each.place.start for each in pages], np.int64)


@dataclass(slots=True)
class _Copying:
    """Blocks of a job that are being copied on one of the device's streams; ``rows``: scratch rows that they are read back into."""

    job: Job
    blocks: list[Block]
    span: Span
    rows: list[int] = field(default_factory=list)


class DeviceCopier(StepCopier):
    """Host memory of ``slots`` blocks, allocated as it is used; with ``ahead``, a thread of its own allocates it before.

    With ``verify`` each host block has a checksum: what was copied, either way, is read back from the KV cache and compared.
    """

    stores_ahead = True

    def __init__(
        self,
        pages: list[Pages],
        slots: int,
        device: CopyDevice,
        verify: bool,
        *,
        piece_bytes: int = PIECE_BYTES,
        ahead: bool = True,
    ) -> None:
        self._pages = pages  # holds the memory that the addresses point to
        self._layers = _Layers(pages)
        self.block_bytes = slot_bytes(pages)
        self._device = device
        self.memory = HostPieces(slots, self.block_bytes, device.pin, device.unpin, piece_bytes)
        self._scratch = HostPieces(SCRATCH_SLOTS if verify else 0, self.block_bytes, device.pin, device.unpin, piece_bytes)
        self._checks = Checks(self.memory, self._scratch) if verify else None
        self.transfers = Transfers(self.block_bytes)
        self._copying: dict[Lane, deque[_Copying]] = {lane: deque() for lane in Lane}  # each in the order of its stream
        self._after: Mark | None = None
        self._ahead = _Ahead(self.memory, device) if ahead and slots else None

    def submit(self, job: Job) -> None:
        """Nothing is copied before `launch` or `wait`."""
        more = [self.memory.use(slot) for _, slot in job.blocks]
        if any(more) and self._ahead is not None:
            self._ahead.wanted.set()
        self.transfers.add(job)

    def allow(self, blocks: int | None) -> None:
        self.transfers.allowed = blocks
        self._after = self._device.mark()

    def launch(self) -> None:
        after = self._device.mark() if self._after is None else self._after
        for queue in (self.transfers.loads, self.transfers.stores):
            while queue and self.transfers.allowed != 0:
                job = queue[0]
                blocks = self.transfers.claim(job, self._launchable(job))
                if not blocks:
                    break
                if self.transfers.allowed is not None:
                    self.transfers.allowed -= len(blocks)
                self._copy(job, blocks, after, Lane.OUT if job.store else Lane.BACK)

    def wait(self, numbers: set[int]) -> None:
        """The step stream waits for these jobs from here on; unknown ones count as finished. Launches what is not launched of them yet."""
        jobs = [self.transfers.jobs[number] for number in sorted(numbers) if number in self.transfers.jobs]
        if jobs:
            after = self._device.mark()
            for job in jobs:
                self._copy_all(job, after)
        for copying in chain(*self._copying.values()):
            if copying.job.number in numbers:
                self._device.hold(copying.span.ended)
        self._after = None

    def _copy_all(self, job: Job, after: Mark) -> None:
        while job.begun < len(job.blocks):
            while self._checks is not None and not self._checks.room:
                self._end_oldest()
            most = len(job.blocks) if self._checks is None else self._checks.room
            self._copy(job, self.transfers.claim(job, most), after, Lane.AWAITED if job.store else Lane.BACK)

    def get_finished(self) -> list[Job]:
        for queue in self._copying.values():
            while queue and queue[0].span.ended.query():
                self._end(queue.popleft())
        return self.transfers.take_finished()

    def shutdown(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        for queue in self._copying.values():
            while queue:
                queue.popleft().span.ended.synchronize()
        self.memory.close()
        self._scratch.close()

    def _launchable(self, job: Job) -> int:
        """How many of the job's next blocks may be copied beside the step: within the step's bound, up to the first slot without memory."""
        most = len(job.blocks) - job.begun
        if self.transfers.allowed is not None:
            most = min(most, self.transfers.allowed)
        if self._checks is not None:
            most = min(most, self._checks.room)
        if self._ahead is None or not self._ahead.alive:
            return most  # what is missing is taken now
        slots = (slot for _, slot in job.blocks[job.begun : job.begun + most])
        return next((number for number, slot in enumerate(slots) if not (self.memory.ready(slot) or self.memory.full)), most)

    def _copy(self, job: Job, blocks: list[Block], after: Mark, lane: Lane) -> None:
        """Copy the blocks that can be copied: a slot may have no memory, or may not hold any more what was stored in it."""
        fit = [block for block in blocks if self.memory.address(block[1]) is not None and (job.store or self._whole(block))]
        if len(fit) < len(blocks):
            self.transfers.ended(job, len(blocks) - len(fit), False, 0.0)
        if not fit:
            return
        rows = self._checks.take(len(fit)) if self._checks is not None else []
        there = [self._batch(fit, [slot for _, slot in fit], self.memory, out=job.store)]
        again = [self._batch(fit, rows, self._scratch, out=True)] if rows else []
        span = self._device.copy(lane, after, there + again)
        self._copying[lane].append(_Copying(job, fit, span, rows))

    def _batch(self, blocks: list[Block], slots: Sequence[int], memory: HostPieces, *, out: bool) -> Batch:
        layers = self._layers
        kv = np.array([block for block, _ in blocks], np.int64)[:, None]
        rows = np.array([memory.address(slot) for slot in slots], np.int64)[:, None]
        sizes = np.tile(layers.bytes, len(blocks))
        pages, places = (layers.base + kv * layers.stride).ravel(), (rows + layers.place).ravel()
        return Batch(pages, places, sizes, to_device=False) if out else Batch(places, pages, sizes, to_device=True)

    def _whole(self, block: Block) -> bool:
        return self._checks is None or self._checks.whole(block[1])

    def _end_oldest(self) -> None:
        queue = next(queue for queue in self._copying.values() if queue)
        copying = queue.popleft()
        copying.span.ended.synchronize()
        self._end(copying)

    def _end(self, copying: _Copying) -> None:
        ok = True
        if self._checks is not None:
            ok = self._checks.ended(copying.job.store, [slot for _, slot in copying.blocks], copying.rows)
        self.transfers.ended(copying.job, len(copying.blocks), ok, copying.span.seconds())


class _Ahead:
    """The thread that allocates host memory before it is used."""

    def __init__(self, memory: HostPieces, device: CopyDevice) -> None:
        self._memory, self._device = memory, device
        self.wanted = threading.Event()
        self.wanted.set()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="kv-host-memory", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._closed = True
        self.wanted.set()
        self._thread.join()

    def _work(self) -> None:
        self._device.enter_thread()
        while not self._closed:
            while not self._closed and self._memory.prepare():
                pass
            self.wanted.wait()
            self.wanted.clear()
