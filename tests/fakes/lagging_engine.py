"""An engine whose device runs behind its host, in virtual time: what CUDA does to a scheduler, without a GPU.

Real: scheduler, safepoints, shared state, signal, and the worker's way through a step. Played: the device, which has a queue; the model;
vLLM's two executors and its `EngineCore.step_with_batch_queue`. Each thread of the real engine is an actor here. The clock goes on when all
of them wait, so that a run is the same on any machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from bench.harness.engine.drive import Drive
from harvester.engine.frontend.signal import ArrivalSignal
from harvester.engine.shared.state import Field
from harvester.engine.shared.steporder import ORDER
from harvester.engine.vllm.worker.workers import PreemptibleWorker
from harvester.engine.worker.clock import StepClock
from harvester.engine.worker.places import SafepointSite
from harvester.engine.worker.safepoint import Safepoints
from tests.fakes.virtual_time import Box, Clock

LAYERS = 36
FIXED_S, TOKEN_S, SAMPLE_S = 0.006, 40e-6, 0.0002  # of the device: an 8B model on a GPU four times slower than an H200
PLAN_S, MESSAGE_S, PREPARE_S, LAUNCH_S = 0.0008, 0.0001, 0.0015, 20e-6  # of the host
SLO_S, PROMPT, ANSWER = 0.1, 200, 6  # of chat


class LaggingDevice:
    """`harvester.engine.worker.device.Device` with one queue. ``free_s``: when all that is queued is done."""

    lags = True

    def __init__(self, clock: Clock) -> None:
        self._clock, self.free_s = clock, 0.0

    def launch(self, seconds: float) -> float:
        self.free_s = max(self._clock.now_s, self.free_s) + seconds
        return self.free_s

    def mark(self, *, timed: bool = False) -> Any:
        self._clock.wait(5e-6)
        return _Mark(self._clock, max(self._clock.now_s, self.free_s))

    def drain(self) -> None:
        self._clock.wait_until(self.free_s)


class _Mark:
    def __init__(self, clock: Clock, at_s: float) -> None:
        self._clock, self.at_s = clock, at_s

    def query(self) -> bool:
        return self._clock.now_s >= self.at_s

    def synchronize(self) -> None:
        self._clock.wait_until(self.at_s)

    def elapsed_time(self, end: _Mark) -> float:
        return 1000 * (end.at_s - self.at_s)


class _Late:
    """An output that is there when the device has made it."""

    def __init__(self, clock: Clock, at_s: float, answer: Any) -> None:
        self._clock, self._at_s, self._answer = clock, at_s, answer

    def get_output(self) -> Any:
        self._clock.wait_until(self._at_s)
        return self._answer


class _StockWorker:
    """vLLM's part of the worker: launches a step and goes on."""

    device: Any

    def __init__(self, clock: Clock, device: LaggingDevice) -> None:
        self.model_runner = SimpleNamespace(execute_model_state=None)
        self.rank = 0
        self.clock, self.device = clock, device
        self.layers = [SimpleNamespace(forward=self._layer) for _ in range(LAYERS)]
        self.spans: dict[int, tuple[float, float]] = {}  # when the device began each step, and ended it
        self._layer_s, self._free_s = 0.0, 0.0

    def _layer(self) -> None:
        self.clock.wait(LAUNCH_S)
        self.device.launch(self._layer_s)

    def execute_model(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        self._free_s = max(self.clock.now_s, self.device.free_s)
        self.clock.wait(PREPARE_S)
        if not output.total_num_scheduled_tokens:
            return ModelRunnerOutput(req_ids=[], req_id_to_index={})
        step_s = FIXED_S + TOKEN_S * output.total_num_scheduled_tokens
        if max(output.num_scheduled_tokens.values()) == 1:  # a full CUDA graph: no Python in it
            self.device.launch(step_s)
        else:
            self._layer_s = step_s / LAYERS
            for layer in self.layers:
                layer.forward()
        self.model_runner.execute_model_state = output
        return None

    def sample_tokens(self, grammar: Any) -> Any:
        from vllm.v1.outputs import AsyncModelRunnerOutput

        output, self.model_runner.execute_model_state = self.model_runner.execute_model_state, None
        assert output is not None, "sampled without a step"
        ended_s = self.device.launch(SAMPLE_S)
        self.spans[getattr(output, ORDER).number] = self._free_s, ended_s
        kind = type("Late", (_Late, AsyncModelRunnerOutput), {})
        return kind(self.clock, ended_s, output.answer)


class LaggingWorker(PreemptibleWorker, _StockWorker):
    """Made as `HarvestCudaWorker` is, with the shared state of an engine. ``cut``: like ``spans``, of the steps that ended early."""

    def __init__(self, clock: Clock, device: LaggingDevice, shared: Any) -> None:
        super().__init__(clock, device)
        self._clock = StepClock(device)
        safepoints = Safepoints(shared, leader=True, ranks=1, device=device)
        safepoints.install([SafepointSite(str(number), layer, "forward") for number, layer in enumerate(self.layers)])
        self._end_steps(safepoints, device, shared)
        self.cut: dict[int, tuple[float, float]] = {}

    def _end(self, scheduler_output: Any, number: int) -> None:
        super()._end(scheduler_output, number)
        self.cut[number] = self._free_s, self.clock.now_s


class InThread:
    """`UniProcExecutor`: the worker runs in the engine core's thread."""

    def __init__(self, clock: Clock, worker: LaggingWorker) -> None:
        self._worker = worker

    def call(self, method: str, *given: Any) -> Callable[[], Any]:
        output = getattr(self._worker, method)(*given)
        return lambda: output.get_output() if hasattr(output, "get_output") else output


class InProcess:
    """`MultiprocExecutor`: the worker, and the thread that waits for its outputs, are actors of their own."""

    def __init__(self, clock: Clock, worker: LaggingWorker) -> None:
        self._clock, self._worker = clock, worker
        self._calls, self._outputs = Box(clock), Box(clock)
        clock.start(self._work)
        clock.start(self._answer)

    def call(self, method: str, *given: Any) -> Callable[[], Any]:
        reply = Box(self._clock)
        self._calls.put((method, given, reply))
        return reply.get

    def _work(self) -> None:
        while True:
            method, given, reply = self._calls.get()
            self._clock.wait(MESSAGE_S)
            self._outputs.put((getattr(self._worker, method)(*given), reply))

    def _answer(self) -> None:
        while True:
            output, reply = self._outputs.get()
            got = output.get_output() if hasattr(output, "get_output") else output
            self._clock.wait(MESSAGE_S)
            reply.put(got)


class Engine:
    """Offline rows for ever, and chats at random times, each of which may ask that a step ends."""

    def __init__(
        self, drive: Drive, shared: Any, executor: type[InThread | InProcess], clock: Clock, max_ttft_delay_fraction: float, seed: int
    ) -> None:
        self.drive, self.shared, self.clock = drive, shared, clock
        self.worker = LaggingWorker(clock, LaggingDevice(clock), shared)
        self._executor = executor(clock, self.worker)
        self._signal = ArrivalSignal(shared, max_ttft_delay_fraction)
        self._rng = random.Random(seed)
        self._inputs = deque[str]()
        self._batches = deque[tuple[Callable[[], Any], Any]]()
        self._rows = 0
        self.arrived_s: dict[str, float] = {}
        self.first_s: dict[str, float] = {}  # seconds to the first token
        self.asked: list[tuple[int, int]] = []  # first and last step that each signal meant
        self.looks: list[tuple[float, int | None]] = []  # when chats came, and the step that was in flight by the shared state
        clock.start(self._front_end)
        clock.start(self._core)

    def _front_end(self) -> None:
        while True:
            self.clock.wait(self._rng.uniform(0.15, 0.45))
            name = f"chat-{len(self.arrived_s)}"
            self.arrived_s[name] = self.clock.now_s
            self._inputs.append(name)
            flight = self.shared.in_flight()
            self.looks.append((self.clock.now_s, flight[0].number if flight else None))
            if self._signal.arrived(PROMPT, SLO_S):
                self.asked.append((int(self.shared[Field.ABORT_FROM]), int(self.shared[Field.ABORT_UPTO])))

    def board_was_right(self) -> list[bool]:
        """For each chat that met a step on the device: whether the shared state named that step."""
        spans = sorted((began_s, ended_s, number) for number, (began_s, ended_s) in {**self.worker.spans, **self.worker.cut}.items())
        met = ((named, number) for at_s, named in self.looks for began_s, ended_s, number in spans if began_s <= at_s < ended_s)
        return [named == number for named, number in met]

    def _core(self) -> None:
        while True:
            self._feed()
            self._step()

    def _feed(self) -> None:
        scheduler = self.drive.scheduler
        while len(scheduler.waiting) + len(scheduler.running) < 128:
            prompt, answer = self._rng.randrange(400, 3000), self._rng.randrange(1, 40)
            self.drive.add(f"row-{self._rows}", prompt, answer, offline=True, arrived_s=self.clock.now_s)
            self._rows += 1
        while self._inputs:
            name = self._inputs.popleft()
            self.drive.add(name, PROMPT, ANSWER, offline=False, arrived_s=self.arrived_s[name])

    def _step(self) -> None:
        """vLLM's `step_with_batch_queue` with two batches, where no sampling is deferred."""
        output = self.drive.scheduler.schedule()
        self.clock.wait(PLAN_S)
        output.answer = self.drive.output(output)
        answer = self._executor.call("execute_model", output)
        executed = output.total_num_scheduled_tokens > 0
        if executed:
            grammar = self.drive.scheduler.get_grammar_bitmask(output)
            answer = self._executor.call("sample_tokens", grammar)
        self._batches.appendleft((answer, output))
        if len(self._batches) < 2 and (executed or self.drive.scheduler.has_requests()):
            return
        answer, output = self._batches.pop()
        self._take(output, answer())

    def _take(self, output: Any, result: Any) -> None:
        for name, tokens in zip(result.req_ids, result.sampled_token_ids, strict=False):
            if tokens and name in self.arrived_s:
                self.first_s.setdefault(name, self.clock.now_s - self.arrived_s[name])
        self.drive.take(output, result)
