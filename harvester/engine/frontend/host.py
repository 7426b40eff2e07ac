"""One vLLM engine, owned by this process: its OpenAI app for chat, and offline answers for the harvest loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY

from harvester.access_config import TierConfig
from harvester.engine.frontend.door import Door
from harvester.engine.frontend.hangups import HangUps
from harvester.engine.frontend.metrics import SharedStateMetrics
from harvester.engine.frontend.offline import OfflineEngine
from harvester.engine.frontend.snapshot import snapshot
from harvester.engine.launch import profiler
from harvester.engine.launch.abilities import OFF_KEY
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.shared.steporder import SAFEPOINTS_KEY
from harvester.engine.verify.serving import Verified
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.frontend.media import max_images
from harvester.engine.vllm.frontend.serving import OfflineApi, Reasoning, chat_app, given_template, served_adapters, served_models
from harvester.engine.vllm.launch import start_llm
from harvester.errors import EngineError
from jobs.tasks.embedding import Gives
from jobs.tasks.thinking import ModelThinking

GIVES = {"generate": Gives.TEXT, "embed": Gives.EMBEDDING}  # by vLLM's name of the task


class EngineHost:
    """Made by `start`. Used from one event loop; tokenization runs in a thread of its own so that it never delays a chat token."""

    def __init__(
        self, llm: HarvestLLM, app: FastAPI, chat_template: str | None, shared: SharedState | None = None, tiers: TierConfig | None = None
    ) -> None:
        self.llm = llm
        self.gives: tuple[Gives, ...] = ()  # kinds of output that the model has for a prompt
        self._api = OfflineApi(app, llm, tiers or TierConfig())
        self._offline: OfflineEngine | None = None
        self.shared = shared
        self.app = app
        self._verified: Verified | None = None
        self._chat_template = chat_template
        self._reasoning = Reasoning(llm, app, chat_template)

    @classmethod
    async def start(cls, values: Mapping[str, Any], tiers: TierConfig | None = None) -> EngineHost:
        """Start the engine for vLLM arguments ``values`` and wait until it answers.

        Raises `EngineError` with vLLM's own reason, and `ConfigError` for what `harvester.engine.launch.abilities` refuses.
        """
        args, llm = start_llm(values)
        app = await chat_app(llm, args)
        shared = llm.shared_state
        if shared is not None:
            llm.enable_scheduling(shared)
            REGISTRY.register(SharedStateMetrics(shared))
        _receive(app, llm, tiers or TierConfig())
        host = cls(llm, app, given_template(args), shared, tiers)
        tasks = await llm.get_supported_tasks()
        host.gives = tuple(gives for task, gives in GIVES.items() if task in tasks)
        return host

    @property
    def thinking(self) -> ModelThinking:
        """How the model can think."""
        return self._reasoning.thinking

    @property
    def context_tokens(self) -> int:
        return self.llm.sizes.context_tokens

    @property
    def max_seqs(self) -> int:
        return self.llm.sizes.max_seqs

    @property
    def max_images(self) -> int:
        """Most images in one prompt; 0: the model takes none."""
        return max_images(self.llm)

    def offline(self, model: str, concurrency: int, max_image_bytes: int | None = None, gpu_share: float = 1.0) -> OfflineEngine:
        """The engine for job rows that ask for ``model``, as `OfflineEngine` says. Call it once; `close` closes that engine too."""
        self._offline = OfflineEngine(
            self.llm,
            self._api,
            self._reasoning,
            chat_template=self._chat_template,
            model=model,
            concurrency=concurrency,
            shared=self.shared,
            max_image_bytes=max_image_bytes,
            gpu_share=gpu_share,
        )
        return self._offline

    def models(self) -> list[str]:
        """Every name that the chat route answers to."""
        return served_models(self.app)

    def adapters(self) -> list[str]:
        """Names of LoRA adapters, which the chat route answers to as well."""
        return sorted(served_adapters(self.app))

    async def check(self) -> None:
        """Raise `EngineError` when the engine is dead."""
        await self.llm.check()

    async def profile(self, seconds: float | None = None) -> dict[str, Any]:
        """Measure the engine for about ``seconds``; see `harvester.engine.launch.profiler`. Raises `EngineError`."""
        if self.shared is None:
            raise EngineError("this engine runs without shared state and cannot be profiled")
        return await profiler.profile(self.llm, self.shared, seconds or profiler.FULL_S)

    def expected_s(self) -> float | None:
        """Predicted seconds to the first token of a chat that arrives now; None: no prediction."""
        return None if self.llm.overload is None else self.llm.overload.expected_s()

    def now(self) -> dict[str, Any]:
        """See `harvester.engine.frontend.snapshot`. ``wrong``: a line for each part that is off or wrong.

        Empty for an engine without shared state.
        """
        if self.shared is None:
            return {}
        wrong = self._off(self.shared) + (self._verified.wrong() if self._verified else [])
        return {**snapshot(self.llm, self.shared, time.monotonic()), "wrong": wrong}

    def _off(self, shared: SharedState) -> list[str]:
        """A line for each part that is off because of the model or its arguments."""
        ours = self.llm.additional
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


def _receive(app: FastAPI, llm: HarvestLLM, tiers: TierConfig) -> None:
    """Put our middleware before vLLM's application, whose own list of middleware is closed by now."""
    inner = app.middleware_stack or app.build_middleware_stack()
    door = inner if llm.overload is None else Door(inner, llm.overload, tiers, llm.settings.slo_of)
    app.middleware_stack = HangUps(door)
