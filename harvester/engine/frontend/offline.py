"""The engine as the harvest loop uses it: rows answered as offline work."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from harvester.engine.frontend.engine import Generated
from harvester.engine.frontend.rendering import RowTemplate
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.frontend.media import Images
from harvester.engine.vllm.frontend.serving import BUSY_WAIT_S, OfflineApi, Reasoning
from harvester.errors import BusyError, EngineError, UsageError
from jobs.engine import PLAIN, ApiCall, Completion, EngineGone, Message, Prompt, Rendering, RowError, RowRequest
from jobs.hint import SchedulingHint

T = TypeVar("T")

FAILED = ("error", "abort")  # finish reasons that vLLM's own routes answer with status 500


class OfflineEngine:
    """Implements `jobs.engine.RowEngine`. Tokenizes in a thread of its own, so that it never delays a chat token.

    ``model`` is the name that jobs ask for; ``concurrency``: see `RowEngine`; ``max_image_bytes``: the limit for an image that is fetched.
    ``gpu_share``: part of its GPU that the engine has; 1 for one with whole GPUs.
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
        gpu_share: float = 1.0,
    ) -> None:
        self.model = model
        self.concurrency = concurrency
        self._llm = llm
        self._api = api
        self._reasoning = reasoning
        self._shared = shared
        self._gpu_share = gpu_share
        self._images = Images(llm, chat_template, max_image_bytes)
        self._tokenizer = llm.get_tokenizer()
        self._template = RowTemplate(self._tokenizer, chat_template)
        self.marks = self._template.marks(reasoning.marks)
        self._defaults = dict(llm.model_config.get_diff_sampling_param())  # the model's own sampling parameters, as on the chat route
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._openings: dict[str, list[int]] = {}  # by the template's arguments

    @property
    def context_tokens(self) -> int:
        return self._llm.sizes.context_tokens

    @property
    def harvested_s(self) -> float:
        return 0.0 if self._shared is None else self._shared.count(Count.JOBS_S) * self._llm.devices * self._gpu_share

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def count_tokens(self, messages: tuple[Message, ...], rendering: Rendering = PLAIN) -> int:
        text = len(await self._tokenize(messages, rendering))
        # Counts twice what the template puts around a message: an upper bound, for checking what fits.
        return text + (await self._images.count(rendering.images, self._reasoning.template_kwargs(rendering)) if rendering.images else 0)

    async def complete(self, request: RowRequest) -> Completion:
        """See `RowEngine.complete`."""
        if isinstance(request.content, ApiCall):
            return await self._api.respond(request.request_id, request.content, request.hint)
        if request.content.max_tokens == 0:
            return await self._embed(request.request_id, request.content, request.hint)
        return await self._answer(request.request_id, request.content, request.hint)

    async def _embed(self, request_id: str, prompt: Prompt, hint: SchedulingHint) -> Completion:
        token_ids = await self._tokenize(prompt.messages, prompt.rendering)
        adapter = self._api.adapter(prompt.adapter)
        found = await _asked_until_free(request_id, lambda name: self._llm.embed(name, token_ids, extra=hint.to_args(), adapter=adapter))
        if not all(map(math.isfinite, found.vector)):
            raise RowError("not_finite", "the embedding holds numbers that are not finite; serve the model with engine.dtype float32")
        return Completion(json.dumps(found.vector), "stop", found.usage)

    async def _answer(self, request_id: str, prompt: Prompt, hint: SchedulingHint) -> Completion:
        adapter = self._api.adapter(prompt.adapter)
        rendered = await self._shown(prompt)
        token_ids = await self._tokenize(prompt.messages, prompt.rendering) if rendered is None else list(rendered["prompt_token_ids"])
        reader = self._reasoning.reader(prompt, token_ids, await self._opening(prompt.rendering))

        def ask(name: str) -> Awaitable[Generated]:
            return self._llm.complete(
                name,
                token_ids,
                max_tokens=prompt.max_tokens,
                temperature=prompt.temperature,
                choices=prompt.choices,
                json_schema=prompt.json_schema,
                extra=hint.to_args(),
                sampling=self._defaults if reader is None else {**self._defaults, **reader.sampling},
                thought=None if reader is None else reader.engine,
                rendered=rendered,
                adapter=adapter,
            )

        found = await _asked_until_free(request_id, ask)
        if found.finish_reason in FAILED:
            rendered = await self._shown(prompt)  # with its images: the engine core may have ended the request for want of one
            found = await _asked_until_free(f"{request_id}-again", ask)
        if found.finish_reason in FAILED:
            raise RowError("engine_failed", f"vLLM ended the request twice with {found.finish_reason!r} and no answer; its log says why")
        if reader is None:
            return Completion(found.text, found.finish_reason, found.usage)
        read = reader.read(found)
        return Completion(read.text, found.finish_reason, found.usage, reasoning=read.reasoning)

    async def _opening(self, rendering: Rendering) -> Sequence[int]:
        """Tokens with which the chat template begins an answer of a thinking model; empty if they are not known."""
        if not rendering.thinking_tokens:
            return ()
        kwargs = self._reasoning.template_kwargs(rendering)
        key = json.dumps(kwargs, sort_keys=True, default=str)
        if key not in self._openings:
            self._openings[key] = await asyncio.get_running_loop().run_in_executor(self._thread, self._opening_of, kwargs)
        return self._openings[key]

    def _opening_of(self, kwargs: dict[str, Any]) -> list[int]:
        asked: list[Message] = [{"role": "user", "content": "?"}]
        whole, without = self._template.tokens(asked, kwargs), self._template.tokens(asked, kwargs, opens=False)
        return whole[len(without) :] if whole[: len(without)] == without else []

    async def _shown(self, prompt: Prompt) -> dict[str, Any] | None:
        """The rendered prompt, if it has images; None for one without."""
        rendering = prompt.rendering
        if not rendering.images:
            return None
        messages = self._template.fitted(prompt.messages)
        return await self._images.prompt(messages, rendering.images, self._reasoning.template_kwargs(rendering))

    async def _tokenize(self, messages: tuple[Message, ...], rendering: Rendering) -> list[int]:
        """Token ids of the rendered prompt."""
        if rendering.is_plain:
            (message,) = messages
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, message["content"])
        kwargs = self._reasoning.template_kwargs(rendering)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._template.tokens, messages, kwargs)

    def _encode(self, text: str) -> list[int]:
        """Tokenize a text as vLLM's embeddings route does."""
        about = self._llm.model_config.encoder_config or {}
        return list(self._tokenizer.encode(text.lower() if about.get("do_lower_case", False) else text))


async def _asked_until_free(request_id: str, ask: Callable[[str], Awaitable[T]]) -> T:
    """The engine's answer, with its errors as those of a job. Tries again while the engine's queue is full."""
    number = 0
    while True:
        try:
            return await ask(f"{request_id}-{number}" if number else request_id)
        except BusyError:
            number += 1
            await asyncio.sleep(BUSY_WAIT_S)
        except UsageError as error:
            raise RowError("refused", error.message) from error
        except EngineError as error:
            raise EngineGone(error.message) from error
