"""The engine as the harvest loop knows one: rows answered as offline work."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError

from harvester.core import PRIORITY_OFFLINE
from harvester.engine.frontend.llm import HarvestLLM
from harvester.engine.frontend.openai import OfflineApi
from jobs.engine import ApiRequest, Completion, EngineGone, Message, Prompt, RowError
from jobs.usage import Usage


class OfflineEngine:
    """Implements `jobs.engine.Engine`. Tokenizes in a thread of its own, so that it never delays a chat token.

    ``model`` is the name that jobs ask for; ``concurrency``: see `Engine`.
    """

    def __init__(self, llm: HarvestLLM, api: OfflineApi, chat_template: str | None, model: str, concurrency: int) -> None:
        self.model = model
        self.concurrency = concurrency
        self._llm = llm
        self._api = api
        self._chat_template = chat_template
        self._tokenizer = llm.get_tokenizer()
        self._defaults = dict(llm.model_config.get_diff_sampling_param())  # the model's own, as the chat route takes them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    @property
    def context_tokens(self) -> int:
        return int(self._llm.model_config.max_model_len)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return len(await self._tokenize(messages))

    async def complete(self, prompt: Prompt) -> Completion:
        """See `Engine.complete`."""
        token_ids = await self._tokenize(prompt.messages)
        try:
            params = SamplingParams(**(self._defaults | _asked(prompt)), output_kind=RequestOutputKind.FINAL_ONLY)
            stream = self._llm.generate(TokensPrompt(prompt_token_ids=token_ids), params, prompt.request_id, priority=PRIORITY_OFFLINE)
            last: RequestOutput | None = None
            async for output in stream:
                last = output
        except EngineDeadError as error:
            raise EngineGone("the vLLM engine died during the request") from error
        except ValueError as error:  # vLLM refuses the prompt
            raise RowError("refused", " ".join(str(error).split())) from error
        if last is None:
            raise EngineGone("vLLM ended the request without an answer")
        return _completion(last)

    async def respond(self, request: ApiRequest) -> Completion:
        return await self._api.respond(request)

    async def _tokenize(self, messages: tuple[Message, ...]) -> list[int]:
        """Token ids of the rendered chat prompt."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, list(messages))

    def _render(self, messages: list[Message]) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, chat_template=self._chat_template
        )
        return list(ids)


def _asked(prompt: Prompt) -> dict[str, Any]:
    guided = None
    if prompt.choices is not None:
        guided = StructuredOutputsParams(choice=list(prompt.choices))
    elif prompt.json_schema is not None:
        guided = StructuredOutputsParams(json=prompt.json_schema)
    return {
        "max_tokens": prompt.max_tokens,
        "temperature": prompt.temperature,
        "structured_outputs": guided,
        "extra_args": prompt.hint.to_args(),
    }


def _completion(output: RequestOutput) -> Completion:
    best = output.outputs[0]
    usage = Usage(
        prompt_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=int(output.num_cached_tokens or 0),
        output_tokens=len(best.token_ids),
        preemptions=int(getattr(output.metrics, "num_preemptions", 0) or 0),
    )
    return Completion(best.text, str(best.finish_reason or "stop"), usage)
