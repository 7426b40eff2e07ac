"""The engine as the harvest loop knows one: rows answered as offline work."""

from __future__ import annotations

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harvester.engine.shared.state import Count, SharedState
from harvester.engine.vllm.client import HarvestLLM
from harvester.engine.vllm.media import Images
from harvester.engine.vllm.serving import OfflineApi, Reasoning
from harvester.errors import EngineError, UsageError
from jobs.engine import PLAIN, ApiCall, Completion, EngineGone, Message, Prompt, Rendering, RowError, RowRequest
from jobs.hint import SchedulingHint


class OfflineEngine:
    """Implements `jobs.engine.Engine`. Tokenizes in a thread of its own, so that it never delays a chat token.

    ``model`` is the name that jobs ask for; ``concurrency``: see `Engine`; ``max_image_bytes``: of an image that is fetched.
    """

    def __init__(
        self,
        llm: HarvestLLM,
        api: OfflineApi,
        reasoning: Reasoning,
        chat_template: str | None,
        model: str,
        concurrency: int,
        shared: SharedState | None,
        max_image_bytes: int | None = None,
    ) -> None:
        self.model = model
        self.concurrency = concurrency
        self._llm = llm
        self._api = api
        self._reasoning = reasoning
        self._shared = shared
        self._chat_template = chat_template
        self._images = Images(llm, chat_template, max_image_bytes)
        self._tokenizer = llm.get_tokenizer()
        self._defaults = dict(llm.model_config.get_diff_sampling_param())  # the model's own, as the chat route takes them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    @property
    def context_tokens(self) -> int:
        return self._llm.sizes.context_tokens

    @property
    def harvested_s(self) -> float:
        return 0.0 if self._shared is None else self._shared.count(Count.HARVESTED_S) * self._llm.devices

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def count_tokens(self, messages: tuple[Message, ...], rendering: Rendering = PLAIN) -> int:
        text = len(await self._tokenize(messages, rendering))
        # Twice with what the template puts around a message: a bound, for what is to fit.
        return text + (await self._images.count(rendering.images, self._reasoning.template_kwargs(rendering)) if rendering.images else 0)

    async def complete(self, request: RowRequest) -> Completion:
        """See `Engine.complete`."""
        if isinstance(request.content, ApiCall):
            return await self._api.respond(request.request_id, request.content, request.hint)
        if request.content.max_tokens == 0:
            return await self._embed(request.request_id, request.content, request.hint)
        return await self._answer(request.request_id, request.content, request.hint)

    async def _embed(self, request_id: str, prompt: Prompt, hint: SchedulingHint) -> Completion:
        token_ids = await self._tokenize(prompt.messages, prompt.rendering)
        try:
            found = await self._llm.embed(request_id, token_ids, extra=hint.to_args(), adapter=self._api.adapter(prompt.adapter))
        except UsageError as error:
            raise RowError("refused", error.message) from error
        except EngineError as error:
            raise EngineGone(error.message) from error
        if not all(map(math.isfinite, found.vector)):
            raise RowError("not_finite", "the embedding holds numbers that are not finite; serve the model with engine.dtype float32")
        return Completion(json.dumps(found.vector), "stop", found.usage)

    async def _answer(self, request_id: str, prompt: Prompt, hint: SchedulingHint) -> Completion:
        rendered = await self._shown(prompt)
        token_ids = await self._tokenize(prompt.messages, prompt.rendering) if rendered is None else list(rendered["prompt_token_ids"])
        reader = self._reasoning.reader(prompt.rendering, token_ids)
        try:
            found = await self._llm.complete(
                request_id,
                token_ids,
                max_tokens=prompt.max_tokens,
                temperature=prompt.temperature,
                choices=prompt.choices,
                json_schema=prompt.json_schema,
                extra=hint.to_args(),
                sampling=self._defaults if reader is None else {**self._defaults, **reader.sampling},
                thought=None if reader is None else reader.engine,
                rendered=rendered,
                adapter=self._api.adapter(prompt.adapter),
            )
        except UsageError as error:
            raise RowError("refused", error.message) from error
        except EngineError as error:
            raise EngineGone(error.message) from error
        if reader is None:
            return Completion(found.text, found.finish_reason, found.usage)
        read = reader.read(found)
        return Completion(read.text, found.finish_reason, found.usage, reasoning=read.reasoning)

    async def _shown(self, prompt: Prompt) -> dict[str, Any] | None:
        """A prompt with images, rendered; None for one without."""
        rendering = prompt.rendering
        if not rendering.images:
            return None
        return await self._images.prompt(prompt.messages, rendering.images, self._reasoning.template_kwargs(rendering))

    async def _tokenize(self, messages: tuple[Message, ...], rendering: Rendering) -> list[int]:
        """Token ids of the rendered prompt."""
        if rendering.is_plain:
            (message,) = messages
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, message["content"])
        kwargs = self._reasoning.template_kwargs(rendering)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, list(messages), kwargs)

    def _encode(self, text: str) -> list[int]:
        """As vLLM's embeddings route does for a text."""
        about = self._llm.model_config.encoder_config or {}
        return list(self._tokenizer.encode(text.lower() if about.get("do_lower_case", False) else text))

    def _render(self, messages: list[Any], kwargs: dict[str, Any]) -> list[int]:
        given = {**kwargs, "chat_template": self._chat_template, "tokenize": True, "add_generation_prompt": True, "return_dict": False}
        ids = self._tokenizer.apply_chat_template(messages, **given)
        assert not isinstance(ids, str), "asked for tokens"
        return list(ids)
