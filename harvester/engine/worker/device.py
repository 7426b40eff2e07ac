"""The device that a worker computes on: the queue of its steps, and copies beside them. Tests have devices in virtual time.

All of CUDA that harvester uses is here, through PyTorch. The calls that PyTorch lacks are handed in (`CudaCalls`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch


class Mark(Protocol):
    """A place in one of the device's queues. `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def synchronize(self) -> None:
        """Return when it has."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to ``end``. Both are timed and reached."""


class Device(Protocol):
    """``lags``: whether it runs behind its host, which then launches work and goes on."""

    lags: bool

    def mark(self, *, timed: bool = False) -> Mark:
        """Mark the place behind all work launched so far on the step stream."""

    def drain(self) -> None:
        """Return when nothing of the forward pass is left to do. Copies on other streams may go on."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Addresses and sizes in bytes, int64, of copies that may be made in any order. ``to_device``: from host memory."""

    sources: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray
    to_device: bool


@dataclass(frozen=True, slots=True)
class Span:
    """Timed marks around some work."""

    began: Mark
    ended: Mark

    def seconds(self) -> float:
        """Device time between the marks, both of which must be reached."""
        return self.began.elapsed_time(self.ended) / 1000


class Lane(StrEnum):
    """A stream for copies. Copies that a step waits for have their own, so that they do not queue behind the others."""

    OUT = "out"  # to the host
    BACK = "back"
    AWAITED = "awaited"  # to the host, while a step waits


class CopyDevice(Device, Protocol):
    """A device with a stream for each `Lane`, beside the stream that steps are launched on."""

    def enter_thread(self) -> None:
        """Prepare the calling thread for pinning memory."""

    def pin(self, address: int, size_bytes: int) -> bool:
        """Pin a range of whole pages. Returns whether it is pinned now."""

    def unpin(self, address: int) -> None:
        """Undo `pin`. Nothing may be copied to or from the range any more."""

    def hold(self, mark: Mark) -> None:
        """Make the step stream wait for the mark: later launches on it begin after the mark. The calling thread does not wait."""

    def copy(self, lane: Lane, after: Mark, batches: Sequence[Batch]) -> Span:
        """Launch the batches one after the other on the lane's stream. They begin after the mark ``after``."""


class HostDevice:
    """A CPU, which is its own host: work is done when its call returns."""

    lags = False

    def mark(self, *, timed: bool = False) -> Mark:
        raise AssertionError("a device that does not lag has no queue")

    def drain(self) -> None:
        """Nothing is ever queued."""


class CudaDevice:
    """A CUDA device. The step stream is the calling thread's current stream."""

    lags = True

    def __init__(self, device: torch.device | None = None) -> None:
        """``device``: None for the current one."""
        self._device = device

    def mark(self, *, timed: bool = False) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=timed)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def drain(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()


@dataclass(frozen=True, slots=True)
class CudaCalls:
    """``copy_batch``: addresses of sources and targets, sizes, all int64 on the host, and whether sources may be read ahead of the stream.

    ``pin``: takes an address and bytes, returns whether the range is pinned; ``unpin``: takes the address of such a range.
    """

    copy_batch: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]
    pin: Callable[[int, int], bool]
    unpin: Callable[[int], None]


class CudaCopyDevice(CudaDevice):
    """Copies run on the copy engines (``cuMemcpyBatchAsync``), so that they take no compute time."""

    def __init__(self, device: torch.device, calls: CudaCalls) -> None:
        super().__init__(device)
        self._cuda, self._calls = device, calls
        self._lanes = {lane: torch.cuda.Stream(device, priority=-(lane is Lane.AWAITED)) for lane in Lane}

    def enter_thread(self) -> None:
        torch.cuda.set_device(self._cuda)

    def pin(self, address: int, size_bytes: int) -> bool:
        return self._calls.pin(address, size_bytes)

    def unpin(self, address: int) -> None:
        self._calls.unpin(address)

    def hold(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def copy(self, lane: Lane, after: Mark, batches: Sequence[Batch]) -> Span:
        assert isinstance(after, torch.cuda.Event)
        stream = self._lanes[lane]
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.wait_event(after)
        with torch.cuda.stream(stream):
            began.record(stream)
            for batch in batches:
                sources, targets, sizes = (torch.from_numpy(part) for part in (batch.sources, batch.targets, batch.sizes))
                # Nothing writes to host rows that are read: the engine may fetch them before the stream comes to the copy.
                self._calls.copy_batch(sources, targets, sizes, batch.to_device)
            ended.record(stream)
        return Span(began, ended)


def device_of(kind: str) -> Device:
    """``kind``: vLLM's ``device_type``."""
    return CudaDevice() if kind == "cuda" else HostDevice()
