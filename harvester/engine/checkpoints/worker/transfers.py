"""The copies of one worker: in which order, and how many beside a step. What makes them, a thread or a device, is not its affair."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

Block = tuple[int, int, int]  # KV cache group, KV block, host slot


@dataclass(slots=True)
class Job:
    number: int
    store: bool
    blocks: list[Block]
    begun: int = 0
    done: int = 0
    seconds: float = 0.0
    ok: bool = True


@dataclass(slots=True)
class Transfers:
    """Not thread-safe. What is read back goes before what is stored, since a request waits for it."""

    block_bytes: int
    loads: deque[Job] = field(default_factory=deque)  # with blocks that nobody has begun
    stores: deque[Job] = field(default_factory=deque)
    jobs: dict[int, Job] = field(default_factory=dict)  # not finished
    finished: list[TransferResult] = field(default_factory=list)
    allowed: int | None = None  # blocks that may still be copied beside the step; None: no bound

    @property
    def queue(self) -> deque[Job]:
        """Whose first job is the next."""
        return self.loads or self.stores

    def add(self, job: Job) -> None:
        self.jobs[job.number] = job
        if job.blocks:
            (self.stores if job.store else self.loads).append(job)
        else:
            self._finish(job)

    def claim(self, job: Job, most: int = 1) -> list[Block]:
        """Its next blocks are the caller's to copy."""
        blocks = job.blocks[job.begun : job.begun + most]
        job.begun += len(blocks)
        if blocks and job.begun == len(job.blocks):
            (self.stores if job.store else self.loads).remove(job)
        return blocks

    def ended(self, job: Job, blocks: int, ok: bool, seconds: float) -> None:
        """So many blocks that were claimed are copied, or could not be."""
        job.seconds += seconds
        job.ok &= ok
        job.done += blocks
        if job.done == len(job.blocks):
            self._finish(job)

    def take_finished(self) -> list[TransferResult]:
        found, self.finished = self.finished, []
        return found

    def _finish(self, job: Job) -> None:
        del self.jobs[job.number]
        self.finished.append(TransferResult(job.number, job.ok, len(job.blocks) * self.block_bytes, job.seconds))


class StepCopier(OffloadingWorker):  # type: ignore[misc]
    """vLLM's worker, told of the steps that it copies beside. All calls come from the thread that launches them."""

    stores_ahead = False  # whether stores may be submitted before the step's forward pass

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        self.submit(Job(job_id, True, blocks_of(src_spec, dst_spec)))
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self.submit(Job(job_id, False, blocks_of(dst_spec, src_spec)))
        return True

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Take it on. Copying may begin at once, or at `launch`."""

    @abstractmethod
    def allow(self, blocks: int | None) -> None:
        """Before a step's forward pass, after what it waits for: so many blocks may be copied beside it; None: all there are."""

    def launch(self) -> None:
        """After the forward pass was launched."""


def blocks_of(cache: GPULoadStoreSpec, host: LoadStoreSpec) -> list[Block]:
    groups: Iterable[int] = (group for group, size in enumerate(cache.group_sizes) for _ in range(size))
    return [(group, int(block), int(slot)) for group, block, slot in zip(groups, cache.block_ids, host.block_ids, strict=True)]
