"""vLLM's front end of the engine, which tells the running step of an arrival and times what each class of work gets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import psutil
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from harvester.core import WorkClass, work_class
from harvester.engine.frontend.metrics import ClassMetrics, StreamClock
from harvester.engine.frontend.signal import ArrivalSignal
from harvester.engine.shared.settings import Settings, Slo


class HarvestLLM(AsyncLLM):  # type: ignore[misc]
    """Both the chat routes and the harvest loop hand their requests to it. Until `attend` it is vLLM's own."""

    _signal: ArrivalSignal | None = None
    _metrics: ClassMetrics | None = None
    _settings: Settings
    _in_flight: Counter[WorkClass] | None = None

    def attend(self, signal: ArrivalSignal, metrics: ClassMetrics, settings: Settings) -> None:
        """Signal arrivals and count what becomes of them."""
        self._signal, self._metrics, self._settings = signal, metrics, settings
        self._in_flight = Counter()

    def stop_signals(self) -> None:
        """From now on arrivals end no steps."""
        self._signal = None

    def shutdown(self, timeout: float | None = None) -> None:
        """vLLM's, which in 0.32 asks each process that it must kill for its name, and fails where one ends by itself meanwhile."""
        try:
            super().shutdown(timeout)
        except psutil.NoSuchProcess:
            resources = self.engine_core.resources
            kill([process.pid for process in resources.engine_manager.processes])
            resources()

    def in_flight(self) -> dict[WorkClass, int]:
        """Requests that have come and are not answered, by class of work."""
        counts = self._in_flight or Counter()
        return {work: counts[work] for work in WorkClass}

    def latencies(self, now_s: float) -> dict[str, Any]:
        """``ttft`` and ``tpot`` of online streams of late (`ClassMetrics.recent`), and what they are promised, in seconds."""
        if self._metrics is None:
            return {"ttft": None, "tpot": None, "ttft_slo_s": None, "tpot_slo_s": None}
        promise = self._settings.slo_of(None)
        return {**self._metrics.recent(now_s), "ttft_slo_s": promise.ttft_s, "tpot_slo_s": promise.tpot_s}

    async def add_request(self, request_id: str, prompt: Any, params: Any, arrival_time: float | None = None, **rest: Any) -> Any:
        """vLLM's. The signal comes after the request is sent, so that the engine core finds it when the step has ended."""
        collector = await super().add_request(request_id, prompt, params, arrival_time, **rest)
        if self._signal is not None and work_class(rest.get("priority", 0)) is WorkClass.ONLINE:
            waited_s = max(0.0, time.time() - arrival_time) if arrival_time is not None else 0.0
            self._signal.arrived(_tokens(prompt), self._promise(params).ttft_s, waited_s)
        return collector

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **rest: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """vLLM's, timed."""
        work = work_class(rest.get("priority", 0))
        clock = None
        if self._metrics is not None and work is WorkClass.ONLINE and sampling_params.output_kind is RequestOutputKind.DELTA:
            clock = StreamClock(self._metrics, self._promise(sampling_params), time.monotonic())
        output: RequestOutput | None = None
        stream = super().generate(prompt, sampling_params, request_id, **rest)
        async with aclosing(stream):  # a client that hangs up aborts it
            with self._counted(work):
                async for output in stream:
                    if clock is not None:
                        clock.output(sum(len(one.token_ids) for one in output.outputs))
                    yield output
        if self._metrics is not None and output is not None and output.metrics is not None and output.metrics.scheduled_ts:
            self._metrics.queued(work.value, max(0.0, output.metrics.scheduled_ts - output.metrics.queued_ts))

    @contextmanager
    def _counted(self, work: WorkClass) -> Iterator[None]:
        counts = self._in_flight
        if counts is None:
            yield
            return
        counts[work] += 1
        try:
            yield
        finally:
            counts[work] -= 1

    def _promise(self, params: Any) -> Slo:
        return self._settings.slo_of(params.extra_args if isinstance(params, SamplingParams) else None)


def _tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 where it is not rendered yet."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(ids) if ids else 0


def kill(pids: Iterable[int]) -> None:
    """These processes and all that they started; those that are gone are passed over."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            for process in (*parent.children(recursive=True), parent):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
