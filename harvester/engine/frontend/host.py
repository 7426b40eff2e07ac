"""One vLLM engine in this process's charge: its OpenAI app for chat, and offline answers for the harvest loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError

from harvester.config import TierConfig
from harvester.core import PRIORITY_OFFLINE
from harvester.engine.frontend.llm import HarvestLLM
from harvester.engine.frontend.metrics import BoardMetrics, ClassMetrics
from harvester.engine.frontend.openai import OfflineApi
from harvester.engine.frontend.signal import ArrivalSignal
from harvester.engine.frontend.snapshot import now
from harvester.engine.launch import profiler
from harvester.engine.launch.start import OFF_KEY, start_llm
from harvester.engine.shared.graphs import graph_sizes
from harvester.engine.shared.settings import KEY, Settings
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.verify.serving import Verified
from harvester.engine.worker.preemptible import SAFEPOINTS_KEY
from harvester.errors import EngineError, UsageError


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


class EngineHost:
    """Made by `start`. Used from one event loop; tokenization runs in a thread of its own so that it never delays a chat token."""

    def __init__(
        self, llm: HarvestLLM, app: FastAPI, chat_template: str | None, shared: SharedState | None = None, tiers: TierConfig | None = None
    ) -> None:
        self.llm = llm
        self.openai = OfflineApi(app, llm, tiers or TierConfig())
        self.shared = shared
        self.app = app
        self._verified: Verified | None = None
        self._chat_template = chat_template
        self._tokenizer = llm.get_tokenizer()
        self._defaults = dict(llm.model_config.get_diff_sampling_param())  # the model's own, as the chat route takes them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    @classmethod
    async def start(cls, values: dict[str, Any], tiers: TierConfig | None = None) -> EngineHost:
        """Start the engine for vLLM arguments ``values`` and wait until it answers.

        Raises `EngineError` with vLLM's own reason, and `ConfigError` for what `harvester.engine.launch.abilities` refuses.
        """
        args, llm = start_llm(values)
        vllm_config = llm.vllm_config
        tasks = await llm.get_supported_tasks()
        app = build_app(args, supported_tasks=tasks, model_config=llm.model_config)
        await init_app_state(llm, app.state, args, tasks)
        app.state.server = type("NoServer", (), {"should_exit": False})()  # vLLM's handler of a dead engine sets it
        settings = Settings.parse(vllm_config.additional_config) if KEY in vllm_config.additional_config else None
        shared = SharedState(settings.shared) if settings is not None and settings.shared is not None else None
        if settings is not None and shared is not None:
            llm.attend(ArrivalSignal(shared, settings.schedule.max_ttft_delay_fraction, graph_sizes(vllm_config)), ClassMetrics(), settings)
            REGISTRY.register(BoardMetrics(shared))
        return cls(llm, app, args.chat_template, shared, tiers)

    @property
    def context_tokens(self) -> int:
        return int(self.llm.model_config.max_model_len)

    @property
    def max_seqs(self) -> int:
        return int(self.llm.vllm_config.scheduler_config.max_num_seqs)

    def models(self) -> list[str]:
        """Every name that the chat route answers to."""
        serving = self.app.state.openai_serving_models
        return [*(path.name for path in serving.base_model_paths), *serving.lora_requests]

    async def check(self) -> None:
        """Raise `EngineError` when the engine is dead."""
        try:
            await self.llm.check_health()
        except EngineDeadError as error:
            raise EngineError("the vLLM engine died") from error

    async def profile(self, seconds: float | None = None) -> dict[str, Any]:
        """Measure the engine for about ``seconds``; see `harvester.engine.launch.profiler`. Raises `EngineError`."""
        if self.shared is None:
            raise EngineError("this engine runs without shared state and cannot be profiled")
        return await profiler.profile(self.llm, self.shared, seconds or profiler.FULL_S)

    def now(self) -> dict[str, Any]:
        """See `harvester.engine.frontend.snapshot.now`. ``wrong``: a line for each part that is off or wrong.

        Empty for an engine without shared state.
        """
        if self.shared is None:
            return {}
        wrong = self._off(self.shared) + (self._verified.wrong() if self._verified else [])
        return {**now(self.llm, self.shared, time.monotonic()), "wrong": wrong}

    def _off(self, shared: SharedState) -> list[str]:
        """What this model or these arguments leave no room for."""
        ours = self.llm.vllm_config.additional_config
        lines = list(ours.get(OFF_KEY, ()))
        if SAFEPOINTS_KEY in ours and not shared[Field.PLACES]:
            lines.append("safepoints are off, a running step is not ended for an arrival: no layer of this model has a place for one")
        return lines

    async def profile_when_absent(self, *, known: bool) -> None:
        if self.shared is not None:
            await profiler.profile_when_absent(self.llm, self.shared, known)

    async def verify_when_absent(self, profile: Path) -> None:
        """See `harvester.engine.verify.serving`."""
        if self.shared is not None:
            self._verified = self._verified or Verified(self.llm, self.shared)
            await self._verified.when_absent(profile)

    def close(self) -> None:
        self.llm.shutdown()
        if self.shared is not None:
            self.shared.remove()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def tokenize(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of the rendered chat prompt."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, list(messages))

    def _render(self, messages: list[dict[str, str]]) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, chat_template=self._chat_template
        )
        return list(ids)

    async def answer(
        self,
        request_id: str,
        token_ids: list[int],
        *,
        max_tokens: int,
        temperature: float,
        choices: Sequence[str] | None = None,
        json_schema: dict[str, Any] | None = None,
        job: str = "",
        window: int = 0,
        claim: dict[str, Any] | None = None,
    ) -> Answer:
        """Answer one prompt as offline work; cancelling the task aborts it in the engine.

        Jobs share the engine by tokens served, as the ``claim`` (weight, share, above_slo) of their newest prompt
        says. The prompts of one ``window`` of a job may be run in any order, windows are run in theirs.

        Raises `UsageError` for a prompt vLLM refuses and `EngineError` when the engine is dead.
        """
        guided = None
        if choices is not None:
            guided = StructuredOutputsParams(choice=list(choices))
        elif json_schema is not None:
            guided = StructuredOutputsParams(json=json_schema)
        try:
            asked = {"max_tokens": max_tokens, "temperature": temperature, "structured_outputs": guided}
            asked["extra_args"] = {"job": job, "slice": window, **(claim or {})}
            params = SamplingParams(**(self._defaults | asked), output_kind=RequestOutputKind.FINAL_ONLY)
            stream = self.llm.generate(TokensPrompt(prompt_token_ids=token_ids), params, request_id, priority=PRIORITY_OFFLINE)
            last: RequestOutput | None = None
            async for output in stream:
                last = output
        except EngineDeadError as error:
            raise EngineError("the vLLM engine died during the request") from error
        except ValueError as error:
            raise UsageError(" ".join(str(error).split())) from error
        if last is None:
            raise EngineError("vLLM ended the request without an answer")
        return _answer(last)


def _answer(output: RequestOutput) -> Answer:
    best = output.outputs[0]
    metrics = output.metrics
    return Answer(
        text=best.text,
        finish_reason=str(best.finish_reason or "stop"),
        prompt_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=int(output.num_cached_tokens or 0),
        output_tokens=len(best.token_ids),
        preemptions=int(getattr(metrics, "num_preemptions", 0) or 0),
    )
