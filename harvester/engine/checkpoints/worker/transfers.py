"""The copies of one worker: their order, and how many run beside a step. The same whether a thread or a device makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from harvester.engine.checkpoints.jobs import Block


@dataclass(slots=True)
class Job:
    """``begun``, ``done``: how many of its blocks. ``seconds``: time spent copying."""

    number: int
    store: bool
    blocks: list[Block]
    begun: int = 0
    done: int = 0
    seconds: float = 0.0
    ok: bool = True
    size_bytes: int = 0  # once it is finished


@dataclass(slots=True)
class Transfers:
    """Not thread-safe. What is read back goes before what is stored, since a request waits for it."""

    block_bytes: int
    loads: deque[Job] = field(default_factory=deque)  # with blocks that nobody has begun
    stores: deque[Job] = field(default_factory=deque)
    jobs: dict[int, Job] = field(default_factory=dict)  # not finished
    finished: list[Job] = field(default_factory=list)
    allowed: int | None = None  # blocks that may still be copied beside the step; None: no bound

    @property
    def queue(self) -> deque[Job]:
        """The queue whose first job is next."""
        return self.loads or self.stores

    def add(self, job: Job) -> None:
        self.jobs[job.number] = job
        if job.blocks:
            (self.stores if job.store else self.loads).append(job)
        else:
            self._finish(job)

    def claim(self, job: Job, most: int = 1) -> list[Block]:
        """Hand the job's next blocks, at most ``most``, to the caller, who copies them."""
        blocks = job.blocks[job.begun : job.begun + most]
        job.begun += len(blocks)
        if blocks and job.begun == len(job.blocks):
            (self.stores if job.store else self.loads).remove(job)
        return blocks

    def ended(self, job: Job, blocks: int, ok: bool, seconds: float) -> None:
        """``blocks`` claimed blocks were copied, or could not be if not ``ok``."""
        job.seconds += seconds
        job.ok &= ok
        job.done += blocks
        if job.done == len(job.blocks):
            self._finish(job)

    def take_finished(self) -> list[Job]:
        found, self.finished = self.finished, []
        return found

    def _finish(self, job: Job) -> None:
        del self.jobs[job.number]
        job.size_bytes = len(job.blocks) * self.block_bytes
        self.finished.append(job)


class StepCopier(ABC):
    """Copies blocks beside steps. All calls come from the thread that launches the steps."""

    stores_ahead = False  # whether stores may be submitted before the step's forward pass

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Take it on. Copying may begin at once, or at `launch`."""

    @abstractmethod
    def wait(self, numbers: set[int]) -> None:
        """Make later work on the step stream run after these jobs; unknown ones count as finished."""

    @abstractmethod
    def allow(self, blocks: int | None) -> None:
        """Called before a step's forward pass, after `wait`. Bounds the blocks copied beside the step; None: no bound."""

    def launch(self) -> None:  # noqa: B027  # what copies by itself has nothing to do
        """After the forward pass was launched."""

    @abstractmethod
    def get_finished(self) -> list[Job]:
        """Jobs that ended since the last call, well or not."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free the host memory, once no copy is in flight any more."""
