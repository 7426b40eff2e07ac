"""How long each step keeps a device that runs behind its host.

The engine core sees when a step is sent and when it is answered. With two steps in flight neither says when the device began it. Marks in
the device's own queue do: from the moment it is free for the step to the step's last kernel.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from harvester.engine.worker.device import Device, Mark

STEP_SECONDS = "step_seconds"  # attribute of the `ModelRunnerOutput` of a step that was timed


class StepClock:
    """Of one worker. Used by its thread alone; outputs may be read by another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._began: Mark | None = None

    def begin(self) -> None:
        """The step's first work is about to be launched."""
        self._began = self._mark()

    def ended_early(self) -> float:
        """Seconds that the step kept the device, which has nothing left of it; 0 where it never began."""
        began, self._began = self._began, None
        if began is None:
            return 0.0
        ended = self._mark()
        ended.synchronize()
        return began.elapsed_time(ended) / 1000

    def end(self, output: Any) -> Any:
        """All of the step is launched; its output, which will tell how long it took."""
        began, self._began = self._began, None
        if began is None or not isinstance(output, ModelRunnerOutput | AsyncModelRunnerOutput):
            return output
        return TimedOutput(output, began, self._mark())

    def _mark(self) -> Mark:
        mark = self._device.mark(timed=True)
        mark.record()
        return mark


class TimedOutput(AsyncModelRunnerOutput):  # type: ignore[misc]
    """An output that carries its step's seconds as `STEP_SECONDS` once it is there."""

    def __init__(self, inner: ModelRunnerOutput | AsyncModelRunnerOutput, began: Mark, ended: Mark) -> None:
        self._inner, self._began, self._ended = inner, began, ended

    def get_output(self) -> ModelRunnerOutput:
        """vLLM's; waits for the device."""
        output = self._inner.get_output() if isinstance(self._inner, AsyncModelRunnerOutput) else self._inner
        self._ended.synchronize()
        setattr(output, STEP_SECONDS, self._began.elapsed_time(self._ended) / 1000)
        return output
