"""How long each step keeps a device that runs behind its host.

The engine core sees when a step is sent and when it is answered. With two steps in flight neither says when the device began it. Marks in
the device's own queue do: from the moment it is free for the step to the step's last kernel.
"""

from __future__ import annotations

from harvester.engine.worker.device import Device, Mark, Span


class StepClock:
    """Of one worker, and used by its thread alone; spans may be read by another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._began: Mark | None = None

    def begin(self) -> None:
        """The step's first work is about to be launched."""
        self._began = self._device.mark(timed=True)

    def ended_early(self) -> float:
        """Seconds that the step kept the device, which has nothing left of it; 0 where it never began."""
        span = self.end()
        if span is None:
            return 0.0
        span.ended.synchronize()
        return span.seconds()

    def end(self) -> Span | None:
        """All of the step is launched. None where it never began."""
        began, self._began = self._began, None
        return None if began is None else Span(began, self._device.mark(timed=True))
