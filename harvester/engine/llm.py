"""vLLM's front end of the engine, which tells the running step of an arrival."""

from __future__ import annotations

import time
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from harvester.core import WorkClass, work_class
from harvester.engine.settings import Settings
from harvester.engine.signal import ArrivalSignal


class HarvestLLM(AsyncLLM):  # type: ignore[misc]
    """Both the chat routes and the harvest loop hand their requests to it."""

    _signal: ArrivalSignal | None = None
    _settings: Settings

    def signal_arrivals(self, signal: ArrivalSignal, settings: Settings) -> None:
        self._signal, self._settings = signal, settings

    async def add_request(self, request_id: str, prompt: Any, params: Any, arrival_time: float | None = None, **rest: Any) -> Any:
        """vLLM's. The signal comes after the request is sent, so that the engine core finds it when the step has ended."""
        collector = await super().add_request(request_id, prompt, params, arrival_time, **rest)
        if self._signal is not None and work_class(rest.get("priority", 0)) is WorkClass.ONLINE:
            extra = params.extra_args if isinstance(params, SamplingParams) else None
            waited_s = max(0.0, time.time() - arrival_time) if arrival_time is not None else 0.0
            self._signal.arrived(_tokens(prompt), self._settings.promise(extra).ttft_s, waited_s)
        return collector


def _tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 where it is not rendered yet."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(ids) if ids else 0
