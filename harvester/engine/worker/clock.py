"""How long each step occupies a device that runs behind its host.

The engine core sees when a step is sent and when it is answered. With two steps in flight, neither time says when the device began it.
Timed marks in the device's own queue do: from the moment the device is free for the step to the step's last kernel.
"""

from __future__ import annotations

from harvester.engine.worker.device import Device, Mark, Span


class StepClock:
    """Times the steps of one worker. Used only by the worker's thread; another thread may read the spans."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._began: Mark | None = None

    def begin(self) -> None:
        """The step's first work is about to be launched."""
        self._began = self._device.mark(timed=True)

    def ended_early(self) -> float:
        """Seconds that the step occupied the device, which has finished what there was of it; 0 if it never began."""
        span = self.end()
        if span is None:
            return 0.0
        span.ended.synchronize()
        return span.seconds()

    def end(self) -> Span | None:
        """All of the step is launched. Returns its span; None if it never began."""
        began, self._began = self._began, None
        return None if began is None else Span(began, self._device.mark(timed=True))
