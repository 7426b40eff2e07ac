"""The replica's vLLM engine behind the `jobs.engine.Engine` protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harvester.errors import EngineError, UsageError
from jobs.engine import ApiAnswer, ApiRequest, Completion, EngineGone, Message, Prompt, RowError

if TYPE_CHECKING:  # which imports vLLM
    from harvester.engine.frontend.host import EngineHost


class OfflineEngine:
    """Implements `jobs.engine.Engine`."""

    def __init__(self, host: EngineHost, model: str, concurrency: int) -> None:
        self._host = host
        self.model = model
        self.concurrency = concurrency

    @property
    def context_tokens(self) -> int:
        return self._host.context_tokens

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return len(await self._host.tokenize(messages))

    async def complete(self, prompt: Prompt) -> Completion:
        try:
            token_ids = await self._host.tokenize(prompt.messages)
            answer = await self._host.answer(
                prompt.request_id,
                token_ids,
                max_tokens=prompt.max_tokens,
                temperature=prompt.temperature,
                choices=prompt.choices,
                json_schema=prompt.json_schema,
                job=prompt.job,
                window=prompt.window,
                claim=prompt.claim.extra_args(),
            )
        except UsageError as error:
            raise RowError("refused", error.message) from error
        except EngineError as error:
            raise EngineGone(error.message) from error
        return Completion(
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            preemptions=answer.preemptions,
        )

    async def respond(self, request: ApiRequest) -> ApiAnswer:
        extra = {"job": request.job, "slice": request.window, **request.claim.extra_args()}
        try:
            response = await self._host.openai.respond(request.request_id, request.endpoint, request.body, extra)
        except EngineError as error:
            raise EngineGone(error.message) from error
        tokens = (response.prompt_tokens, response.cached_tokens, response.output_tokens)
        return ApiAnswer(response.status_code, Completion(response.body, response.finish_reason, *tokens))
