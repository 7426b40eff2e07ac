"""A real engine takes the thinking out of answers: of rows, of batches, of streamed chat; and calls of tools, without an option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.launch.arguments import engine_arguments
from harvester.errors import ConfigError
from tests.engine.forks import run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `thinking_child` was answered."""
    folder = tmp_path_factory.mktemp("thinking")
    output, log = folder / "found.json", folder / "log.txt"
    run("thinking_child", ["--output", str(output)], log)
    told: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return told


def test_a_model_without_a_family_is_taken_as_its_template_shows(found: dict[str, Any]) -> None:
    assert found["thinking"] == {"thinks": True, "can_stop": True, "has_budget": True, "switches": ["enable_thinking"]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("on", {"output": "yes, it is", "reasoning": "I wonder about it", "status": "ok", "ended": "stop"}),
        ("bounded", {"reasoning": "I wonder", "status": "ok"}),
        ("off", {"output": "yes, it is", "status": "ok", "ended": "stop"}),
        ("cut", {"status": "error", "code": "cut_off", "ended": "length", "tokens": 6}),
        ("answer cut", {"output": "yes,", "reasoning": "I wonder about it", "status": "ok", "ended": "length", "tokens": 16}),
        ("choice", {"output": "yes", "reasoning": "I wonder about it", "status": "ok"}),
        ("choice at once", {"output": "yes", "status": "ok"}),
        (
            "opened by its text",
            {"output": "yes <think> and so on it is", "reasoning": "I wonder about it", "status": "ok", "ended": "stop"},
        ),
    ],
)
def test_a_row_thinks_as_it_was_asked(found: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    row = found["rows"][name]
    assert {key: row[key] for key in expected} == expected
    assert ("reasoning" in row) == (name not in ("off", "choice at once"))
    assert row.get("output") is None or not row["output"].startswith("<think>")


def test_a_prompt_that_vllm_refuses_is_its_row_s_error(found: dict[str, Any]) -> None:
    assert [told.partition(":")[0] for told in found["too_long"]] == ["refused", "refused"]
    assert all("longer than the maximum model length" in told or "maximum" in told for told in found["too_long"]), found["too_long"]


def test_a_row_of_a_batch_gets_vllms_reasoning_and_honours_its_template_arguments(found: dict[str, Any]) -> None:
    assert [(found[name]["reasoning"], found[name]["content"]) for name in ("batch", "batch off")] == [
        ("I wonder about it", "yes, it is"),
        (None, "yes, it is"),
    ]


def test_streamed_chat_gets_reasoning_apart_from_content(found: dict[str, Any]) -> None:
    assert found["streamed"] == {"reasoning": "I wonder about it", "content": "yes, it is"}


def test_a_tool_is_called_with_automatic_choice(found: dict[str, Any]) -> None:
    (call,) = found["tools"]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"where": "here"})
    assert found["tools"]["finish_reason"] == "tool_calls"


# -- what the configuration says ----------------------------------------------------------------------------------------------------------


def chosen(model: Path, **engine: Any) -> dict[str, Any]:
    """The parsers among vLLM's arguments for the embedded model, which does not think and calls no tools."""
    from harvester.engine.vllm.frontend.answers import with_parsers
    from harvester.engine.vllm.launch import namespace

    values = engine_arguments(parse_config({"engine": engine}, "test"), str(model), "toy", cpu=True, embedded=True)
    found = with_parsers(values, lambda plain: namespace(plain)[1].create_model_config())
    assert "tool_parser" not in found, "vLLM has no such argument"
    return {name: found[name] for name in ("reasoning_parser", "tool_call_parser", "enable_auto_tool_choice") if name in found}


def test_a_model_that_neither_thinks_nor_calls_gets_no_parser(model: Path) -> None:
    assert chosen(model) == {}


def test_a_named_parser_is_taken_by_either_name_of_the_argument(model: Path) -> None:
    tools = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    assert chosen(model, tool_parser="hermes") == chosen(model, tool_call_parser="hermes") == tools
    assert chosen(model, reasoning_parser="qwen3", tool_parser="none") == {"reasoning_parser": "qwen3"}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"reasoning_parser": "qwen33"}, "engine.reasoning_parser: vLLM has no parser 'qwen33'; did you mean qwen3?"),
        ({"tool_parser": "hermess"}, "engine.tool_parser: vLLM has no parser 'hermess'; did you mean hermes?"),
    ],
)
def test_a_parser_that_vllm_does_not_have_is_refused_in_one_line(model: Path, engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(model, **engine)
    assert refused.value.message == message


def test_a_named_parser_whose_marks_the_tokenizer_lacks_is_refused_in_one_line(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.reasoning_parser=deepseek_r1 does not fit .*could not locate") as refused:
        chosen(model, reasoning_parser="deepseek_r1")
    assert "\n" not in refused.value.message
