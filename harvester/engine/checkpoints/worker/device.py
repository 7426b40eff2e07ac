"""What copies need of a device: streams, events, batches of copies and pinned pages. All of CUDA that checkpoints use is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from vllm import _custom_ops
from vllm.v1.kv_offload.cpu.host_register import host_register, host_unregister


@dataclass(frozen=True, slots=True)
class Batch:
    """Addresses and sizes in bytes, int64, of copies that may be made in any order. ``to_device``: from host memory."""

    sources: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray
    to_device: bool


@dataclass(frozen=True, slots=True)
class Flight:
    """Events around the copies of one call. ``Any``: the device's own."""

    began: Any
    ended: Any


class Device(Protocol):
    """Two streams for copies, out (to the host) and back, beside the stream that steps are launched on."""

    def enter_thread(self) -> None:
        """The calling thread is about to pin memory."""

    def pin(self, address: int, size_bytes: int) -> bool:
        """Whether the range, of whole pages, is pinned now."""

    def unpin(self, address: int) -> None:
        """Undo it. Nothing may be copied to or from the range any more."""

    def mark(self) -> Any:
        """An event after all that was launched on the stream of the steps so far."""

    def hold(self, event: Any) -> None:
        """What is launched on the stream of the steps from now on begins after the event. The calling thread does not wait."""

    def copy(self, out: bool, after: Any, batches: Sequence[Batch]) -> Flight:
        """Put the batches, each after the one before, on one of the two streams; they begin after the event ``after``."""

    def reached(self, event: Any) -> bool:
        """Whether the device has come to it."""

    def wait(self, event: Any) -> None:
        """Return when it has."""

    def seconds(self, flight: Flight) -> float:
        """How long the copies took on the device, which has ended them."""


class CudaDevice:
    """Copies are the copy engines' (``cuMemcpyBatchAsync``), so that they take no time of what computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def enter_thread(self) -> None:
        torch.cuda.set_device(self._device)

    def pin(self, address: int, size_bytes: int) -> bool:
        return bool(host_register(address, size_bytes))

    def unpin(self, address: int) -> None:
        host_unregister(address)

    def mark(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self._device).record_event()

    def hold(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def copy(self, out: bool, after: torch.cuda.Event, batches: Sequence[Batch]) -> Flight:
        stream = self._out if out else self._back
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.wait_event(after)
        with torch.cuda.stream(stream):
            began.record(stream)
            for batch in batches:
                given = (torch.from_numpy(part) for part in (batch.sources, batch.targets, batch.sizes))
                # Nothing writes to host rows that are read: the engine may fetch them before the stream comes to the copy.
                _custom_ops.swap_blocks_batch(*given, is_src_access_order_any=batch.to_device)
            ended.record(stream)
        return Flight(began, ended)

    def reached(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def seconds(self, flight: Flight) -> float:
        return float(flight.began.elapsed_time(flight.ended)) / 1000
