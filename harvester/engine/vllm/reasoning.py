"""The thinking of job rows: how a prompt is told to think or not, what the engine is told, and an answer taken apart by vLLM's parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.abstract_parser import Parser

from harvester.engine.frontend.engine import Generated
from harvester.engine.vllm.client import HarvestLLM
from harvester.engine.vllm.parsers import model_thought, named_thought
from jobs.engine import Rendering
from jobs.tasks.thinking import ModelThinking


@dataclass(frozen=True, slots=True)
class Read:
    """An answer taken apart. ``reasoning``: None where nothing was thought."""

    text: str
    reasoning: str | None


class Reasoning:
    """Of the model behind ``app``, vLLM's application, whose parser it uses. ``chat_template``: the user's; None: the model's."""

    def __init__(self, llm: HarvestLLM, app: FastAPI, chat_template: str | None) -> None:
        self._llm = llm
        serving = getattr(app.state, "openai_serving_chat", None)  # of a pooling model there is none
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

    def template_kwargs(self, rendering: Rendering) -> dict[str, Any]:
        """Arguments of the chat template."""
        switched = self._switch.on if rendering.thinking_tokens else self._switch.off or {}
        return {**switched, **rendering.template_kwargs}

    def reader(self, rendering: Rendering, token_ids: Sequence[int]) -> Reader | None:
        """For one request, whose prompt is ``token_ids``; None where it does not think."""
        if not rendering.thinking_tokens or self._parser_cls is None:
            return None
        kwargs = self.template_kwargs(rendering)
        parser = self._parser_cls(self._llm.get_tokenizer(), None, chat_template_kwargs=kwargs, model_config=self._llm.model_config)
        budget = rendering.thinking_tokens if self.thinking.has_budget else None
        return Reader(parser, kwargs, list(token_ids), budget)


class Reader:
    """What vLLM's chat route does around one request, for a row."""

    def __init__(self, parser: Parser, kwargs: Mapping[str, Any], token_ids: list[int], budget_tokens: int | None) -> None:
        self._parser = parser
        self._token_ids = token_ids
        self._request = ChatCompletionRequest.model_validate({"messages": []})
        parser.adjust_request(self._request)
        # By the names of vLLM's sampling parameters, and of `AsyncLLM.generate`.
        self.sampling = {"skip_special_tokens": self._request.skip_special_tokens, "thinking_token_budget": budget_tokens}
        self.engine = {
            "reasoning_ended": self._request.resolve_reasoning_ended(parser, token_ids),
            "reasoning_parser_kwargs": {"chat_template_kwargs": dict(kwargs)},
        }

    def read(self, found: Generated) -> Read:
        self._parser.set_prompt_token_ids(self._token_ids)
        reasoning, content, _ = self._parser.parse(found.text, self._request, model_output_token_ids=found.token_ids)
        return Read((content or "").lstrip("\n"), reasoning)
