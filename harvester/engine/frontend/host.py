"""One vLLM engine in this process's charge: its OpenAI app for chat, and the offline engine of the harvest loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.v1.engine.exceptions import EngineDeadError

from harvester.config import TierConfig
from harvester.engine.frontend.llm import HarvestLLM
from harvester.engine.frontend.metrics import BoardMetrics, ClassMetrics
from harvester.engine.frontend.offline import OfflineEngine
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
from harvester.errors import EngineError


class EngineHost:
    """Made by `start`. Used from one event loop."""

    def __init__(
        self, llm: HarvestLLM, app: FastAPI, chat_template: str | None, shared: SharedState | None = None, tiers: TierConfig | None = None
    ) -> None:
        self.llm = llm
        self._api = OfflineApi(app, llm, tiers or TierConfig())
        self._offline: OfflineEngine | None = None
        self.shared = shared
        self.app = app
        self._verified: Verified | None = None
        self._chat_template = chat_template

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

    def offline(self, model: str, concurrency: int) -> OfflineEngine:
        """The engine for the rows of jobs that ask for ``model``; called once. `close` ends it too."""
        self._offline = OfflineEngine(self.llm, self._api, self._chat_template, model, concurrency)
        return self._offline

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
        if self._offline is not None:
            self._offline.close()
