"""Answers as vLLM gives them.

Which of vLLM's parsers split them, by the model's family or the configuration; constraints on an answer; vLLM's errors as harvester's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.config import ModelConfig
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.logprobs import Logprob
from vllm.outputs import RequestOutput
from vllm.parser import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.sampling_params import StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from harvester.engine.frontend.engine import Generated, Top
from harvester.engine.launch.families import NO_SWITCH, Family, family_of
from harvester.engine.launch.template import Render, ThinkingMode, thought_of
from harvester.errors import BusyError, ConfigError, EngineError, UsageError
from jobs.errors import did_you_mean
from jobs.usage import Usage

AUTO, NONE = "auto", "none"
ASKED = ({"role": "user", "content": "Hello"},)  # the conversation that templates are rendered with

log = logging.getLogger(__name__)


def with_parsers(values: Mapping[str, Any], model_of: Callable[[Mapping[str, Any]], ModelConfig]) -> dict[str, Any]:
    """vLLM's arguments with the parsers in place of ``reasoning_parser`` and ``tool_parser``: auto, none, or a name of vLLM's.

    A parser that auto chooses is left out, and the log says so, if the model's tokenizer lacks its marks. Raises `ConfigError` for a name
    that vLLM does not have, and for a named parser that does not fit the tokenizer.
    """
    left = {name: value for name, value in values.items() if name not in ("reasoning_parser", "tool_parser", "tool_call_parser")}
    reasoning = str(values.get("reasoning_parser") or NONE)
    tools = str(values.get("tool_parser") or values.get("tool_call_parser") or NONE)
    _import_plugins(values)
    _check_name("reasoning_parser", reasoning, ReasoningParserManager.list_registered())
    _check_name("tool_parser", tools, ToolParserManager.list_registered())
    if reasoning == tools == NONE:
        return left
    model = model_of(left)
    if model.runner_type == "pooling":
        return left
    render = render_of(model, values.get("chat_template"))
    family = model_family(model, values)
    thought = thought_of(family, render)
    chosen = {
        "reasoning_parser": _fitting(model, reasoning, None if thought is None else thought.parser, "reasoning_parser"),
        "tool_call_parser": _fitting(model, tools, None if family is None else family.tools, "tool_parser"),
    }
    log.info("parsers family=%s reasoning=%s tools=%s", family.name if family else None, *chosen.values())
    found = {name: parser for name, parser in chosen.items() if parser is not None}
    return left | found | ({"enable_auto_tool_choice": True} if "tool_call_parser" in found else {})


def model_family(model: ModelConfig, values: Mapping[str, Any] | None = None) -> Family | None:
    kinds = [str(getattr(config, "model_type", "")) for config in (model.hf_config, model.hf_text_config)]
    served = (values or {}).get("served_model_name") or model.served_model_name or ()
    return family_of(kinds, [model.model, *([served] if isinstance(served, str) else served)])


def model_thought(model: ModelConfig, chat_template: str | None) -> ThinkingMode | None:
    """How the model thinks, whichever parser is set."""
    return thought_of(model_family(model), render_of(model, chat_template))


def named_thought(parser: str) -> ThinkingMode:
    """How a model thinks whose template shows nothing, and whose parser the user named."""
    return ThinkingMode(NO_SWITCH, parser)


def render_of(model: ModelConfig, chat_template: str | None) -> Render:
    tokenizer = cached_tokenizer_from_config(model)
    template = load_chat_template(chat_template)

    def render(kwargs: Mapping[str, Any]) -> str:
        given = {} if template is None else {"chat_template": template}
        found = tokenizer.apply_chat_template(list(ASKED), tokenize=False, add_generation_prompt=True, **given, **kwargs)
        return found if isinstance(found, str) else tokenizer.decode(found)

    return render


def _import_plugins(values: Mapping[str, Any]) -> None:
    if values.get("tool_parser_plugin"):
        ToolParserManager.import_tool_parser(values["tool_parser_plugin"])
    if values.get("reasoning_parser_plugin"):
        ReasoningParserManager.import_reasoning_parser(values["reasoning_parser_plugin"])


def _check_name(key: str, name: str, known: Sequence[str]) -> None:
    if name not in (AUTO, NONE, *known):
        raise ConfigError(f"engine.{key}: vLLM has no parser {name!r}{did_you_mean(name, [AUTO, NONE, *known], 'known names')}")


def _fitting(model: ModelConfig, asked: str, auto: str | None, key: str) -> str | None:
    """The parser's name, if the model's tokenizer has what it looks for."""
    name = {AUTO: auto, NONE: None}.get(asked, asked)
    if name is None:
        return None
    about = {"tool_parser_name": name, "enable_auto_tools": True} if key == "tool_parser" else {"reasoning_parser_name": name}
    try:
        is_harmony = model.hf_config.model_type == "gpt_oss"
        ParserManager.get_parser(**about, model_name=model.model, is_harmony=is_harmony, tokenizer=cached_tokenizer_from_config(model))
    except Exception as error:  # each parser has its own error for what it misses
        reason = " ".join(str(error).split())[:300]
        if asked == AUTO:
            log.warning("%s %s is off: %s", key, name, reason)
            return None
        raise ConfigError(f"engine.{key}={name} does not fit {model.model}: {reason}") from error
    return name


def guided_by(choices: Sequence[str] | None, json_schema: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """The constraint on an answer; None: there is none."""
    if choices is not None:
        return StructuredOutputsParams(choice=list(choices))
    return None if json_schema is None else StructuredOutputsParams(json=dict(json_schema))


@contextmanager
def as_ours() -> Iterator[None]:
    """vLLM's errors of one request as harvester's. Most of them are no `ValueError`."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineError("the vLLM engine died under the request; its log is in logs/ray of the state folder") from error
    except GracefulHTTPError as error:  # its queue is full for now
        raise BusyError(error.message) from error
    except EngineGenerateError as error:  # of this request alone; the message is that of its cause
        raise UsageError(_line(error.__cause__ or error)) from error
    except (VLLMClientError, ValueError) as error:
        raise UsageError(_line(error)) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def generated(output: RequestOutput) -> Generated:
    best = output.outputs[0]
    return Generated(
        text=best.text,
        finish_reason=str(best.finish_reason or "stop"),
        token_ids=list(best.token_ids),
        usage=Usage(
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=int(output.num_cached_tokens or 0),
            output_tokens=len(best.token_ids),
            preemptions=int(getattr(output.metrics, "num_preemptions", 0) or 0),
        ),
        tops=[_top(place) for place in best.logprobs or ()],
        prompt_tops=[None if place is None else _top(place) for place in output.prompt_logprobs or ()],
    )


def _top(place: Mapping[int, Logprob]) -> Top:
    return {token: float(one.logprob) for token, one in place.items()}
