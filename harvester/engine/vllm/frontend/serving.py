"""vLLM's OpenAI application: chat with service tiers, and OpenAI requests that come from a table, through the same serving objects.

Also the thinking of job rows: its switch in the prompt, the engine's arguments for it, and how vLLM's parser splits an answer.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from pydantic_core import PydanticSerializationError
from vllm.entrypoints.generate.base.serving import PRIORITY_HEADER, GenerateBaseServing
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse, UsageInfo
from vllm.lora.request import LoRARequest
from vllm.parser.abstract_parser import Parser
from vllm.renderers.chat_utils import load_chat_template
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError

from harvester.access_config import TierConfig
from harvester.core import PRIORITY_OFFLINE, TIER_PRIORITY, ServiceTier, tier_of_priority
from harvester.engine.frontend.engine import Generated
from harvester.engine.frontend.spending import ASKER, at_most, shortening
from harvester.engine.frontend.tiers import asked_tier, bearer_key, given_priority, marked, settle, without_header
from harvester.engine.vllm.frontend.answers import guided_by, model_thought, named_thought
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.frontend.complete import complete, hide_paths, openai_error
from harvester.engine.vllm.frontend.media import fetch_checked
from harvester.engine.vllm.frontend.validation import stop_at_first_error
from harvester.errors import ParameterError
from jobs.engine import ApiCall, Completion, EngineGone, Prompt, Rendering, RowError
from jobs.hint import SchedulingHint
from jobs.tasks.thinking import ModelThinking
from jobs.usage import Usage

BUSY = (429, 503)  # status of an answer while the engine's queue is full
FAILED = 500  # of one whose request failed in the engine
BUSY_WAIT_S = 1.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

Guided = StructuredOutputsParams | None
Create = Callable[..., Awaitable[Any]]  # create_chat_completion or create_completion: (request, raw_request) -> answer


async def chat_app(llm: HarvestLLM, args: Namespace) -> FastAPI:
    """vLLM's application on an engine that answers. ``args``: its parsed command line."""
    fetch_checked(tuple(args.allowed_media_domains or ()))
    tasks = await llm.get_supported_tasks()
    app = build_app(args, supported_tasks=tasks, model_config=llm.model_config)
    complete(app)
    stop_at_first_error(app)
    await init_app_state(llm, app.state, args, tasks)
    hide_paths(app.state.openai_serving_models)
    bound_beams()
    app.state.server = Namespace(should_exit=False)  # in place of vLLM's own HTTP server, which its handler of a dead engine would stop
    return app


def bound_beams() -> None:
    """From here on each beam search of this process ends at the limit of its caller's key."""
    GenerateBaseServing.beam_search = shortening(GenerateBaseServing.beam_search)  # type: ignore[method-assign]


def given_template(args: Namespace) -> str | None:
    """The chat template that the arguments give, as a text or a file; None: the model's own."""
    found: str | None = load_chat_template(args.chat_template)
    return found


def served_models(app: FastAPI) -> list[str]:
    """Every name that the chat route answers to."""
    serving = app.state.openai_serving_models
    return [*(path.name for path in serving.base_model_paths), *serving.lora_requests]


def served_adapters(app: FastAPI) -> dict[str, LoRARequest]:
    """LoRA adapters by name."""
    return dict(app.state.openai_serving_models.lora_requests)


def install(serving: Any, method: str, config: TierConfig) -> Create:
    """Wrap ``method`` of vLLM's serving object in service tiers. Returns vLLM's own method, for requests whose priority is settled."""
    create: Create = getattr(serving, method)

    async def create_in_tier(request: Any, raw_request: Request | None = None) -> Any:
        try:
            tier = asked_tier(config, (request.model_extra or {}).get("service_tier"), bearer_key(raw_request), ASKER.get())
        except ParameterError as error:
            return serving.create_error_response(error.message, param=error.param)
        # Without a tier the request's own priority stands, as a header or in its body.
        own = given_priority(raw_request, PRIORITY_HEADER, request.priority)
        priority = own if tier is None else TIER_PRIORITY[tier]
        refusal = settle(request, priority)
        if refusal is not None:
            return serving.create_error_response(refusal)
        return _mark(await create(request, without_header(raw_request, PRIORITY_HEADER)), tier_of_priority(priority))

    setattr(serving, method, create_in_tier)
    return create


def _mark(answer: Any, tier: ServiceTier) -> Any:
    """The answer, with the tier that was used."""
    if isinstance(answer, AsyncGenerator):
        return marked(answer, tier)
    if not isinstance(answer, ErrorResponse):
        answer.service_tier = tier.value
    return answer


@dataclass(frozen=True, slots=True)
class _Endpoint:
    request: type[ChatCompletionRequest] | type[CompletionRequest]
    create: Create | None  # None: the model has no such endpoint


class OfflineApi:
    """Both endpoints of ``app``, vLLM's application, for job rows. Installs the service tiers of chat on them."""

    def __init__(self, app: FastAPI, llm: HarvestLLM, tiers: TierConfig) -> None:
        self._llm = llm
        self._app = app
        state = app.state  # has neither endpoint if the model is a pooling model
        chat, plain = getattr(state, "openai_serving_chat", None), getattr(state, "openai_serving_completion", None)
        self._endpoints = {
            CHAT: _Endpoint(ChatCompletionRequest, None if chat is None else install(chat, "create_chat_completion", tiers)),
            COMPLETIONS: _Endpoint(CompletionRequest, None if plain is None else install(plain, "create_completion", tiers)),
        }

    def adapter(self, name: str | None) -> LoRARequest | None:
        """The LoRA adapter of this name; None: the model itself. Raises `RowError` for one that this engine does not have."""
        if name is None:
            return None
        known = served_adapters(self._app)
        if name not in known:
            raise RowError("no_adapter", f"this replica has no adapter {name}; name it under adapters in the server's config, and retry")
        return known[name]

    async def respond(self, request_id: str, call: ApiCall, hint: SchedulingHint) -> Completion:
        """The answer to ``call``, or its error with an HTTP status. Raises `EngineGone`.

        Waits while the engine's queue is full. A request that failed in the engine is sent once more, rendered anew with its images.
        """
        number, has_failed = 0, False
        while True:
            answer = await self._once(f"{request_id}-{number}" if number else request_id, call, hint)
            status = answer.error.code if isinstance(answer, ErrorResponse) else None
            if status in BUSY:
                await asyncio.sleep(BUSY_WAIT_S)
            elif status != FAILED or has_failed:
                break
            has_failed |= status == FAILED
            number += 1
        if isinstance(answer, ErrorResponse):
            return Completion(json.dumps(openai_error(answer.model_dump())), "error", status_code=answer.error.code)
        body = _body(_mark(answer, ServiceTier.FLEX))
        return Completion(body, str(answer.choices[0].finish_reason or "stop"), _usage(answer.usage))

    async def _once(self, request_id: str, call: ApiCall, hint: SchedulingHint) -> Any:
        """vLLM's response object, or its error."""
        try:
            answer = await self._create(request_id, call, hint)
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

    async def _create(self, request_id: str, call: ApiCall, hint: SchedulingHint) -> Any:
        known = self._endpoints[call.endpoint]
        if known.create is None:
            raise NotImplementedError(f"The model does not support {call.endpoint}")  # answered with 501, as by its route
        if call.body.get("stream"):
            raise ValueError("`stream` is not supported in batch requests; remove it")
        request = known.request.model_validate({**call.body, "request_id": request_id})
        if (refusal := settle(request, PRIORITY_OFFLINE)) is not None:
            raise ValueError(refusal)
        request.vllm_xargs = {**(request.vllm_xargs or {}), **hint.to_args()}
        with at_most(call.max_tokens):
            return await known.create(request)


def _body(answer: Any) -> str:
    """JSON text of a response. A tool parser may read half a surrogate pair from a model's escapes; it stays escaped."""
    try:
        return str(answer.model_dump_json())
    except PydanticSerializationError:
        return json.dumps(answer.model_dump())


def _usage(told: UsageInfo) -> Usage:
    """Usage as vLLM tells it, without the number of preemptions."""
    cached = told.prompt_tokens_details.cached_tokens if told.prompt_tokens_details else None
    return Usage(prompt_tokens=told.prompt_tokens, cached_tokens=cached or 0, output_tokens=told.completion_tokens or 0)


@dataclass(frozen=True, slots=True)
class Read:
    """An answer split by its parser. ``reasoning``: None if the model did not think."""

    text: str
    reasoning: str | None


class Reasoning:
    """Thinking of the model behind ``app``, vLLM's application, whose parser it uses. ``chat_template``: the user's; None: the model's."""

    def __init__(self, llm: HarvestLLM, app: FastAPI, chat_template: str | None) -> None:
        self._llm = llm
        serving = getattr(app.state, "openai_serving_chat", None)  # None for a pooling model
        found = None if serving is None else serving.parser_cls
        self._parser_cls: type[Parser] | None = None if found is None or found.reasoning_parser_cls is None else found
        thought = None if serving is None else model_thought(llm.model_config, chat_template)
        name = llm.vllm_config.structured_outputs_config.reasoning_parser
        self._switch = (thought or named_thought(name)).switch
        config = llm.vllm_config.reasoning_config
        self.thinking = ModelThinking(
            thinks=self._parser_cls is not None,
            can_stop=self._switch.off is not None,
            has_budget=self._parser_cls is not None and config is not None and config.enabled,
            switches=self._switch.names,
        )

    @property
    def marks(self) -> tuple[str, ...]:
        """What begins and ends the thinking; empty if the parser does not tell."""
        if self._parser_cls is None or self._parser_cls.reasoning_parser_cls is None:
            return ()
        parser = self._parser_cls.reasoning_parser_cls(self._llm.get_tokenizer())
        return tuple(mark for mark in (parser.reasoning_start_str, parser.reasoning_end_str) if mark)

    def template_kwargs(self, rendering: Rendering) -> dict[str, Any]:
        """Arguments of the chat template."""
        switched = self._switch.on if rendering.thinking_tokens else self._switch.off or {}
        return {**switched, **rendering.template_kwargs}

    def reader(self, prompt: Prompt, token_ids: Sequence[int], opening: Sequence[int]) -> Reader | None:
        """The reader for one request, whose prompt is ``token_ids``; None if it does not think.

        ``opening``: the end of the prompt, with which the template begins an answer.
        """
        rendering = prompt.rendering
        if not rendering.thinking_tokens or self._parser_cls is None:
            return None
        kwargs = self.template_kwargs(rendering)
        parser = self._parser_cls(self._llm.get_tokenizer(), None, chat_template_kwargs=kwargs, model_config=self._llm.model_config)
        budget = rendering.thinking_tokens if self.thinking.has_budget else None
        return Reader(parser, kwargs, list(token_ids), budget, opening, guided_by(prompt.choices, prompt.json_schema))


class Reader:
    """Does for a job row what vLLM's chat route does before and after one request."""

    def __init__(
        self,
        parser: Parser,
        kwargs: Mapping[str, Any],
        token_ids: list[int],
        budget_tokens: int | None,
        opening: Sequence[int] = (),
        guided: Guided = None,
    ) -> None:
        self._parser = parser
        self._token_ids = token_ids
        self._request = ChatCompletionRequest.model_validate({"messages": []})
        self._request.structured_outputs = guided  # the parser of some models (gpt-oss, Mistral) puts its channels around it
        parser.adjust_request(self._request)
        # Keys of `sampling` are vLLM's sampling parameters, those of `engine` arguments of `AsyncLLM.generate`.
        self.sampling = {
            "skip_special_tokens": self._request.skip_special_tokens,
            "thinking_token_budget": budget_tokens,
            "structured_outputs": self._request.structured_outputs,
        }
        self._has_ended = self._request.resolve_reasoning_ended(parser, token_ids)
        if self._has_ended and opening:  # an end mark in the text of a row does not count
            self._has_ended = self._request.resolve_reasoning_ended(parser, list(opening))
        self.engine = {"reasoning_ended": self._has_ended, "reasoning_parser_kwargs": {"chat_template_kwargs": dict(kwargs)}}

    def read(self, found: Generated) -> Read:
        """Split the answer. Thinking that was cut off is no answer, even if the model's parser takes text without an end mark for one."""
        self._parser.set_prompt_token_ids(self._token_ids)
        reasoning, content, _ = self._parser.parse(found.text, self._request, model_output_token_ids=found.token_ids)
        if reasoning is None and found.finish_reason == "length" and not self._has_ended:
            return Read("", content)
        return Read((content or "").lstrip("\n"), reasoning)
