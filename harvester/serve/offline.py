"""The replica's vLLM engine as the harvest loop knows an engine."""

from __future__ import annotations

from harvester.engine.host import EngineHost
from harvester.errors import EngineError, UsageError
from jobs.engine import Completion, EngineGone, Message, Prompt, RowError


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
