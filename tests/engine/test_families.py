"""Every family of the table has parsers that vLLM has, and what is said of its thinking is what a template of its kind shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harvester.engine.launch.families import FAMILIES, NO_SWITCH, OTHERS, QUIET_PARSER, Family, family_of
from harvester.engine.launch.template import thought_of

pytestmark = pytest.mark.engine

TEMPLATES = Path(__file__).with_name("templates")
DOCS = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = [pytest.param(family, id=family.name) for family in FAMILIES]


def template(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Rendered as `transformers` does."""
    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string((TEMPLATES / f"{name}.jinja").read_text())
    return lambda kwargs: found.render(messages=[{"role": "user", "content": "Hello"}], add_generation_prompt=True, bos_token="", **kwargs)


@pytest.mark.parametrize("family", [*ROWS, *(pytest.param(family, id=family.name) for family in OTHERS)])
def test_vllm_has_the_parsers_of_every_family(family: Family) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    assert family.reasoning or family.tools
    if family.reasoning is not None:
        assert ReasoningParserManager.get_reasoning_parser(family.reasoning)
    if family.tools is not None:
        assert ToolParserManager.get_tool_parser(family.tools)
    assert ReasoningParserManager.get_reasoning_parser(QUIET_PARSER)


def test_twenty_families_think_and_twenty_call_tools_by_default() -> None:
    assert sum(family.reasoning is not None for family in FAMILIES) >= 20
    assert sum(family.tools is not None for family in FAMILIES) >= 20
    assert sum(family.reasoning is not None and family.tools is not None for family in FAMILIES) >= 20


@pytest.mark.parametrize("family", ROWS)
def test_every_family_is_found_by_each_of_its_kinds_and_its_example(family: Family) -> None:
    assert [family_of([kind], [family.example]) for kind in family.kinds] == [family] * len(family.kinds)


@pytest.mark.parametrize("family", ROWS)
def test_the_kinds_of_every_family_are_configurations_that_are_known(family: Family) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    # Kinds whose configuration is code that comes with the model: no library knows them.
    own = {"deepseek_v32", "deepseek_v4", "kimi_k2", "mimo", "step3p5"}
    assert set(family.kinds) <= {*CONFIG_MAPPING_NAMES, *_CONFIG_REGISTRY, *own}


@pytest.mark.parametrize("family", ROWS)
def test_every_family_is_in_the_table_of_the_documentation(family: Family) -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| ")]
    parsers = [family.reasoning or "none", family.tools or "none"]
    assert [family.name, family.example, shown(family), *parsers] in rows


def shown(family: Family) -> str:
    """How the table writes a switch."""
    if family.reasoning is None:
        return "does not think"
    if family.switch.off is None:
        return "always" if family.always else "always, where its template opens it"
    (name,) = family.switch.names
    return f"{name}: {_word(family.switch.on[name])}, {_word(family.switch.off[name])}"


def _word(value: Any) -> str:
    return str(value).lower()


@pytest.mark.parametrize(
    ("example", "kind", "shape", "parser", "can_stop"),
    [
        ("Qwen/Qwen3-8B", "qwen3", "qwen3", "qwen3", True),
        ("Qwen/Qwen3-4B-Thinking-2507", "qwen3", "opened", "qwen3", False),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3", "plain", None, False),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_moe", "plain", None, False),
        ("Qwen/QwQ-32B", "qwen2", "opened", "deepseek_r1", False),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2", "plain", None, False),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3", "deepseek-v3.1", "deepseek_v3", True),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek_v3", "plain", None, False),
        ("deepseek-ai/DeepSeek-R1", "deepseek_v3", "plain", "deepseek_r1", False),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama", "opened", "deepseek_r1", False),
        ("zai-org/GLM-4.5-Air", "glm4_moe", "glm-4.5", "glm45", True),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss", "seed-oss", "seed_oss", True),
        ("google/gemma-4-31b-it", "gemma4", "gemma-4", "gemma4", True),
        ("ibm-granite/granite-3.3-8b-instruct", "granite", "granite-3", "granite", True),
        ("tencent/Hy3", "hy_v3", "hy3", "hy_v3", True),
        ("CohereLabs/command-a-reasoning-08-2025", "cohere2", "command-a", "cohere_command3", True),
        ("CohereLabs/command-a-03-2025", "cohere2", "plain", None, False),
        ("allenai/Olmo-3-32B-Think", "olmo3", "opened", "olmo3", False),
        ("allenai/Olmo-3-7B-Instruct", "olmo3", "plain", None, False),
        ("openai/gpt-oss-20b", "gpt_oss", "plain", "openai_gptoss", False),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama", "plain", None, False),
        ("somebody/unknown", "llama", "qwen3", "qwen3", True),
        ("somebody/unknown", "llama", "gemma-4", QUIET_PARSER, True),
        ("somebody/unknown", "llama", "deepseek-v3.1", QUIET_PARSER, True),
        ("somebody/unknown", "llama", "opened", "qwen3", False),
        ("somebody/unknown", "llama", "plain", None, False),
    ],
)
def test_a_template_shows_whether_its_model_thinks(example: str, kind: str, shape: str, parser: str | None, can_stop: bool) -> None:
    thought = thought_of(family_of([kind], [example]), template(shape))
    assert (None if thought is None else thought.parser) == parser
    assert (thought is not None and thought.switch.off is not None) == can_stop


def test_a_template_that_cannot_be_rendered_shows_nothing() -> None:
    def broken(kwargs: Mapping[str, Any]) -> str:
        raise ValueError(kwargs)

    assert thought_of(None, broken) is None
    gpt_oss = thought_of(family_of(["gpt_oss"], ["x"]), broken)
    assert gpt_oss is not None
    assert gpt_oss.switch == NO_SWITCH
