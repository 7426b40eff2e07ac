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
from jobs.engine import ApiRequest, Completion, EngineGone
from jobs.usage import Usage

BUSY = (429, 503)  # the engine's queue is full: later it is not
BUSY_WAIT_S = 1.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


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

    async def respond(self, request: ApiRequest) -> Completion:
        """See `jobs.engine.Engine.respond`. Waits while the engine's queue is full."""
        number = 0
        while True:
            answer = await self._once(f"{request.request_id}-{number}" if number else request.request_id, request)
            if not (isinstance(answer, ErrorResponse) and answer.error.code in BUSY):
                break
            number += 1
            await asyncio.sleep(BUSY_WAIT_S)
        if isinstance(answer, ErrorResponse):
            return Completion(answer.model_dump_json(), "error", status_code=answer.error.code)
        body = mark(answer, ServiceTier.FLEX).model_dump_json()
        return Completion(body, str(answer.choices[0].finish_reason or "stop"), _usage(answer.usage))

    async def _once(self, request_id: str, request: ApiRequest) -> Any:
        """vLLM's response object, or its error."""
        try:
            answer = await self._create(request_id, request)
        except EngineDeadError as error:
            raise EngineGone("the vLLM engine died during the request") from error
        except Exception as error:  # as the HTTP route maps it
            answer = create_error_response(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # vLLM makes an error response of it
        if self._llm.errored:
            raise EngineGone("the vLLM engine died during the request")
        return answer

    async def _create(self, request_id: str, row: ApiRequest) -> Any:
        known = self._endpoints[row.endpoint]
        if known.create is None:
            raise NotImplementedError(f"The model does not support {row.endpoint}")  # answered with 501, as by its route
        if row.body.get("stream"):
            raise ValueError("`stream` is not supported in batch requests; remove it")
        request = known.request.model_validate({**row.body, "request_id": request_id})
        refusal = settle(request, PRIORITY_OFFLINE)
        if refusal is not None:
            raise ValueError(refusal)
        request.vllm_xargs = {**(request.vllm_xargs or {}), **row.hint.to_args()}
        return await known.create(request)


def _usage(told: Any) -> Usage:
    """vLLM's, which says nothing of preemptions."""
    cached = told.prompt_tokens_details.cached_tokens if told.prompt_tokens_details else None
    return Usage(prompt_tokens=told.prompt_tokens, cached_tokens=cached or 0, output_tokens=told.completion_tokens or 0)
