"""What safepoints and step times need of the device that a worker computes on. Tests have one in virtual time."""

from __future__ import annotations

from typing import Protocol

import torch


class Mark(Protocol):
    """A place in the device's queue. `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Put it behind all that is queued now."""

    def synchronize(self) -> None:
        """Return when the device has reached it."""

    def elapsed_time(self, end: Mark) -> float:
        """Milliseconds from here to ``end``. Both are timed and reached."""


class Device(Protocol):
    """``lags``: whether it runs behind its host, which then launches work and goes on."""

    lags: bool

    def mark(self, *, timed: bool = False) -> Mark:
        """A new mark, not in the queue yet."""

    def drain(self) -> None:
        """Return when nothing of the forward pass is left to do. Copies on other streams may go on."""


class HostDevice:
    """A CPU, which is its own host: what was called is done."""

    lags = False

    def mark(self, *, timed: bool = False) -> Mark:
        raise AssertionError("a device that does not lag has no queue")

    def drain(self) -> None:
        """Nothing is ever queued."""


class CudaDevice:
    """The current CUDA device, by its current stream."""

    lags = True

    def mark(self, *, timed: bool = False) -> Mark:
        return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-any-return]

    def drain(self) -> None:
        torch.cuda.current_stream().synchronize()


def device_of(kind: str) -> Device:
    """``kind``: vLLM's ``device_type``."""
    return CudaDevice() if kind == "cuda" else HostDevice()
