"""OpenAI requests that come from a table: through vLLM's own serving objects, as offline work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from harvester.config import TierConfig
from harvester.core import PRIORITY_OFFLINE, ServiceTier
from harvester.engine.frontend.tiers import Create, install, mark, settle
from harvester.errors import EngineError

BUSY = (429, 503)  # the engine's queue is full: later it is not
BUSY_WAIT_S = 1.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Response:
    status_code: int
    body: str  # JSON text
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    request: type[Any]
    create: Create | None  # None: the model has no such endpoint


class OfflineApi:
    """Both endpoints of ``app``, vLLM's application, which gets its service tiers here."""

    def __init__(self, app: FastAPI, llm: AsyncLLM, tiers: TierConfig) -> None:
        self._llm = llm
        state = app.state  # of a pooling model it has neither
        chat, plain = getattr(state, "openai_serving_chat", None), getattr(state, "openai_serving_completion", None)
        self._endpoints = {
            CHAT: _Endpoint(ChatCompletionRequest, None if chat is None else install(chat, "create_chat_completion", tiers)),
            COMPLETIONS: _Endpoint(CompletionRequest, None if plain is None else install(plain, "create_completion", tiers)),
        }

    async def respond(self, request_id: str, endpoint: str, body: dict[str, Any], extra: dict[str, Any]) -> Response:
        """``extra``: job, slice and claim, for the offline order. Waits while the engine's queue is full.

        A request that cannot work gets the status and the error it would get over HTTP. Raises `EngineError` when the engine is dead.
        """
        number = 0
        while True:
            answer = await self._once(f"{request_id}-{number}" if number else request_id, endpoint, body, extra)
            if not (isinstance(answer, ErrorResponse) and answer.error.code in BUSY):
                break
            number += 1
            await asyncio.sleep(BUSY_WAIT_S)
        if isinstance(answer, ErrorResponse):
            return Response(answer.error.code, answer.model_dump_json(), "error")
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return Response(
            200,
            mark(answer, ServiceTier.FLEX).model_dump_json(),
            str(answer.choices[0].finish_reason or "stop"),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=cached or 0,
            output_tokens=usage.completion_tokens or 0,
        )

    async def _once(self, request_id: str, endpoint: str, body: dict[str, Any], extra: dict[str, Any]) -> Any:
        """vLLM's response object, or its error."""
        try:
            answer = await self._create(request_id, endpoint, body, extra)
        except EngineDeadError as error:
            raise EngineError("the vLLM engine died during the request") from error
        except Exception as error:  # as the HTTP route maps it
            answer = create_error_response(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # vLLM makes an error response of it
        if self._llm.errored:
            raise EngineError("the vLLM engine died during the request")
        return answer

    async def _create(self, request_id: str, endpoint: str, body: dict[str, Any], extra: dict[str, Any]) -> Any:
        known = self._endpoints[endpoint]
        if known.create is None:
            raise NotImplementedError(f"The model does not support {endpoint}")  # answered with 501, as by its route
        if body.get("stream"):
            raise ValueError("`stream` is not supported in batch requests; remove it")
        request = known.request.model_validate({**body, "request_id": request_id})
        refusal = settle(request, PRIORITY_OFFLINE)
        if refusal is not None:
            raise ValueError(refusal)
        request.vllm_xargs = {**(request.vllm_xargs or {}), **extra}
        return await known.create(request)
