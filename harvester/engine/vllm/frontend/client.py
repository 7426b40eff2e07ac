"""vLLM's front end of the engine, extended: signals arrivals to the running step, and times the answers of each class of work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from copy import copy
from typing import Any

import psutil
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from harvester.core import PRIORITY_OFFLINE, WorkClass, tier_of_priority, work_class
from harvester.engine.frontend.engine import Embedded, Generated, Sizes
from harvester.engine.frontend.metrics import ClassMetrics, StreamClock
from harvester.engine.frontend.overload import Overload
from harvester.engine.frontend.signal import ArrivalSignal
from harvester.engine.frontend.spending import counted, counted_prompt, sent, shorten
from harvester.engine.processes.in_subprocess import kill
from harvester.engine.shared.settings import KEY, Settings, Slo
from harvester.engine.shared.state import SharedState
from harvester.engine.vllm.frontend.answers import as_ours, generated, guided_by
from harvester.engine.vllm.frontend.sending import send_checked
from harvester.engine.vllm.platform import additional, graph_sizes
from harvester.errors import EngineError, UsageError
from jobs.hint import without_hint
from jobs.usage import Usage

# The context of a trace that is not sampled (W3C): vLLM makes no span beneath it.
UNTRACED = {"traceparent": f"00-{'1' * 32}-{'1' * 16}-00"}


class HarvestLLM(AsyncLLM):
    """Takes the requests of the chat routes and of the harvest loop. Until `enable_scheduling` it behaves as vLLM's own.

    It is a `harvester.engine.frontend.engine.TokenEngine`.
    """

    _signal: ArrivalSignal | None = None
    _metrics: ClassMetrics | None = None
    _settings: Settings | None = None
    _in_flight: Counter[WorkClass] | None = None
    overload: Overload | None = None

    def enable_scheduling(self, shared: SharedState) -> None:
        """From now on signal arrivals, control overload and keep metrics."""
        self._settings = self.settings
        policy = self._settings.policy
        self._signal = ArrivalSignal(shared, policy.max_ttft_delay_fraction, policy.max_slowdown, graph_sizes(self.vllm_config))
        self._metrics = ClassMetrics()
        self.overload = Overload(shared, self.sizes, self._signal.bound_s)
        self._in_flight = Counter()
        self._send = self.engine_core.add_request_async
        self.engine_core.add_request_async = self._add_choice

    def stop_signals(self) -> None:
        self._signal = None

    @property
    def additional(self) -> Mapping[str, Any]:
        """vLLM's `additional_config`, which holds harvester's settings."""
        return additional(self.vllm_config)

    @property
    def settings(self) -> Settings:
        return Settings.parse(self.additional)

    @property
    def _is_traced(self) -> bool:
        return self.vllm_config.observability_config.otlp_traces_endpoint is not None

    @property
    def shared_state(self) -> SharedState | None:
        """None for a stock engine, and for one without shared state."""
        path = self.settings.shared if KEY in self.additional else None
        return None if path is None else SharedState(path)

    @property
    def sizes(self) -> Sizes:
        step, model, cache_config = self.vllm_config.scheduler_config, self.model_config, self.vllm_config.cache_config
        block_tokens, blocks, requests = cache_config.block_size, cache_config.num_gpu_blocks or 0, cache_config.kv_cache_max_concurrency
        assert block_tokens is not None, "asked before vLLM has chosen its block size"
        return Sizes(
            model.max_model_len,
            step.max_num_batched_tokens,
            step.max_num_seqs,
            block_tokens,
            model.get_vocab_size(),
            # vLLM gives how many of the longest requests its blocks hold, of all groups of layers together
            min(blocks * block_tokens, int(requests * model.max_model_len)) if requests else blocks * block_tokens,
            round(blocks / requests) if blocks and requests else None,
        )

    @property
    def devices(self) -> int:
        """Number of devices that one step runs on: tensor x pipeline parallel."""
        return int(self.vllm_config.parallel_config.world_size)

    def has_work(self) -> bool:
        return self.output_processor.has_unfinished_requests()

    async def on_workers(self, method: str) -> list[Any]:
        found: list[Any] = await self.collective_rpc(method)
        return found

    def shutdown(self, timeout: float | None = None) -> None:
        """vLLM's, which in 0.32 asks each process that it must kill for its name, and fails where one ends by itself meanwhile."""
        try:
            super().shutdown(timeout)
        except psutil.NoSuchProcess:
            resources = self.engine_core.resources
            kill([process.pid for process in resources.engine_manager.processes])
            resources()

    async def check(self) -> None:
        """Raise `EngineError` when the engine is dead."""
        try:
            await self.check_health()
        except EngineDeadError as error:
            raise EngineError("the vLLM engine died") from error

    def in_flight(self) -> dict[WorkClass, int]:
        counts = self._in_flight or Counter()
        return {work: counts[work] for work in WorkClass}

    def latencies(self, now_s: float) -> dict[str, Any]:
        if self._metrics is None or self._settings is None:
            return {"ttft": None, "tpot": None, "ttft_slo_s": None, "tpot_slo_s": None}
        return self._metrics.recent(now_s, self._settings.slo_of(None))

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, arrival_time: float | None = None, *given: Any, **named: Any
    ) -> RequestOutputCollector:
        """vLLM's. The signal comes after the request is sent, so that the engine core finds the request when the step has ended.

        Job rows make no trace spans, unless they bring a trace: a table would make a million.
        """
        online = work_class(named.get("priority", 0)) is WorkClass.ONLINE
        if not online and self._is_traced and not named.get("trace_headers"):
            named["trace_headers"] = UNTRACED
        collector = await super().add_request(request_id, prompt, params, arrival_time, *given, **named)
        sent(collector)
        chat = getattr(params, "n", 1) if online else 0
        if self.overload is not None and chat:
            chat = self.overload.chat_of(request_id, chat)
            self.overload.sent(chat, _tokens(prompt))
        if self._signal is not None and chat:
            came_s = prompt.get("arrival_time") if arrival_time is None and isinstance(prompt, dict) else arrival_time
            waited_s = 0.0 if came_s is None else max(0.0, time.time() - came_s)
            self._signal.arrived(_tokens(prompt), self._promise(params).ttft_s, waited_s)
        return collector

    async def _add_choice(self, request: EngineCoreRequest) -> None:
        """Send one choice to the engine core, in place of vLLM's call. One that is no chat becomes offline work, without a job's hints."""
        assert self.overload is not None
        if work_class(request.priority) is WorkClass.ONLINE and not self.overload.sends(str(request.external_req_id)):
            request.priority = PRIORITY_OFFLINE
            params = copy(request.sampling_params)  # the choices of a prompt share them
            if params is not None and params.extra_args:
                params.extra_args = without_hint(params.extra_args)
            request.sampling_params = params
        await send_checked(self, self._send, request)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *given: Any, **named: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """vLLM's, timed. Lowers ``max_tokens`` to the limit of the caller's key."""
        shorten(sampling_params)
        output: RequestOutput | None = None
        made, is_delta = 0, sampling_params.output_kind is RequestOutputKind.DELTA
        stream = super().generate(prompt, sampling_params, request_id, *given, **named)
        stream = counted(stream, is_delta=is_delta)
        with self._running(request_id, sampling_params.n, named.get("priority", 0)) as chat:
            work = WorkClass.ONLINE if chat else WorkClass.OFFLINE
            clock = self._clock(sampling_params, named.get("priority", 0), chat) if is_delta and chat else None
            async with aclosing(stream):  # a client that hangs up aborts it
                with self._counted(work):
                    async for output in stream:
                        tokens = sum(len(one.token_ids) for one in output.outputs)
                        made = made + tokens if is_delta else tokens
                        if clock is not None:
                            clock.output({one.index: len(one.token_ids) for one in output.outputs})
                        yield output
        if self.overload is not None and work is WorkClass.ONLINE:
            self.overload.answered(made // max(1, sampling_params.n))
        if self._metrics is not None and output is not None and output.metrics is not None and output.metrics.scheduled_ts:
            self._metrics.queued(work.value, max(0.0, output.metrics.scheduled_ts - output.metrics.queued_ts))

    @contextmanager
    def _running(self, request_id: str, choices: int, priority: int) -> Iterator[int]:
        """A prompt runs within the block. Yields how many of its choices are chat: the first ones, or none."""
        if self.overload is None or work_class(priority) is WorkClass.OFFLINE:
            yield choices if work_class(priority) is WorkClass.ONLINE else 0
            return
        with self.overload.running(request_id, choices) as chat:
            yield chat

    def _clock(self, params: SamplingParams, priority: int, chat: int) -> StreamClock | None:
        if self._metrics is None:
            return None
        return StreamClock(self._metrics, self._promise(params), time.monotonic(), tier_of_priority(priority), chat)

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, *given: Any, **named: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """vLLM's, counted."""
        async with aclosing(counted_prompt(super().encode(prompt, pooling_params, request_id, *given, **named))) as stream:
            with self._counted(work_class(named.get("priority", 0))):
                async for output in stream:
                    yield output

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
            if self.overload is not None and not counts[WorkClass.ONLINE]:
                self.overload.reset_awaiting()

    def _promise(self, params: Any) -> Slo:
        assert self._settings is not None, "enable_scheduling was not called"
        return self._settings.slo_of(params.extra_args if isinstance(params, SamplingParams) else None)

    async def complete(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float | None = 0.0,
        priority: int = PRIORITY_OFFLINE,
        choices: Sequence[str] | None = None,
        json_schema: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        thought: Mapping[str, Any] | None = None,
        rendered: Mapping[str, Any] | None = None,
        adapter: LoRARequest | None = None,
    ) -> Generated:
        last: RequestOutput | None = None
        with as_ours():
            own: dict[str, Any] = {"max_tokens": max_tokens, "extra_args": dict(extra or {})}
            own |= {} if temperature is None else {"temperature": temperature}
            own |= {} if thought is not None else {"structured_outputs": guided_by(choices, json_schema)}
            params = SamplingParams(**{**(sampling or {}), **own}, output_kind=RequestOutputKind.FINAL_ONLY)
            prompt: Any = TokensPrompt(prompt_token_ids=list(token_ids)) if rendered is None else dict(rendered)
            # Without thinking, an answer is held to its choices or schema from its first token on.
            stream = self.generate(
                prompt, params, request_id, priority=priority, lora_request=adapter, **(thought or {"reasoning_ended": True})
            )
            async for output in stream:
                last = output
        if last is None:
            raise EngineError("vLLM ended the request without an answer")
        return generated(last)

    async def embed(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        priority: int = PRIORITY_OFFLINE,
        extra: Mapping[str, Any] | None = None,
        adapter: LoRARequest | None = None,
    ) -> Embedded:
        """The vector of one prompt, as ``/v1/embeddings`` gives it. ``extra`` and what it raises: see `complete`."""
        params = PoolingParams(task="embed", extra_kwargs=dict(extra or {}))
        last: PoolingRequestOutput | None = None
        with as_ours():
            prompt = TokensPrompt(prompt_token_ids=list(token_ids))
            async for output in self.encode(prompt, params, request_id, adapter, priority=priority):
                last = output
        if last is None:
            raise EngineError("vLLM ended the request without an answer")
        if last.error is not None:  # of this request alone; there is no vector
            raise UsageError(" ".join(last.error.message.split()))
        usage = Usage(prompt_tokens=len(last.prompt_token_ids), cached_tokens=int(last.num_cached_tokens or 0))
        return Embedded([float(number) for number in last.outputs.data.tolist()], usage)


def _tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 where it is not rendered yet."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(ids) if ids else 0
