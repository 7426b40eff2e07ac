"""Families of models: how the thinking of each is switched, and which of vLLM's parsers read its answers.

`docs/models.md` is the table for people. What a row says of thinking holds where the model's own chat template shows it
(`harvester.engine.launch.template`), so that the members of a family that do not think need no row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Switch:
    """Arguments of the chat template that turn thinking on and off; ``off`` None: there is no way."""

    on: Mapping[str, Any]
    off: Mapping[str, Any] | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.on, *(self.off or {})}))


def _kwarg(name: str, on: Any = True, off: Any = False) -> Switch:
    return Switch({name: on}, {name: off})


ENABLE, THINKING, NO_SWITCH = _kwarg("enable_thinking"), _kwarg("thinking"), Switch({}, None)


@dataclass(frozen=True, slots=True)
class Family:
    """``kinds``: `model_type` of its members' configurations; ``named``: a pattern that their names match too, empty for any.

    ``opens``: what begins the thinking, as a template writes it. ``always``: it thinks although its template shows nothing of it.
    """

    name: str
    example: str
    kinds: tuple[str, ...]
    named: str = ""
    switch: Switch = NO_SWITCH
    reasoning: str | None = None
    tools: str | None = None
    opens: str = "<think>"
    always: bool = False


# The first row that matches counts, so rows with a name pattern come before rows of the same kinds without one.
FAMILIES: tuple[Family, ...] = (
    Family(
        "DeepSeek-R1",
        "deepseek-ai/DeepSeek-R1-0528",
        ("deepseek_v3",),
        r"deepseek-r1",
        NO_SWITCH,
        "deepseek_r1",
        "deepseek_v3",
        always=True,
    ),
    Family(
        "DeepSeek-R1 distilled",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        ("qwen2", "llama", "qwen3"),
        r"deepseek-r1",
        NO_SWITCH,
        "deepseek_r1",
    ),
    Family("DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1", ("deepseek_v3",), r"deepseek-v3\.1", THINKING, "deepseek_v3", "deepseek_v31"),
    Family("DeepSeek-V3", "deepseek-ai/DeepSeek-V3-0324", ("deepseek_v3",), r"deepseek", tools="deepseek_v3"),
    Family("DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2", ("deepseek_v32",), "", THINKING, "deepseek_v3", "deepseek_v32"),
    Family("DeepSeek-V4", "deepseek-ai/DeepSeek-V4", ("deepseek_v4",), "", THINKING, "deepseek_v4", "deepseek_v4"),
    Family("Qwen3-Coder", "Qwen/Qwen3-Coder-30B-A3B-Instruct", ("qwen3", "qwen3_moe", "qwen3_next"), r"coder", tools="qwen3_coder"),
    Family("Qwen3", "Qwen/Qwen3-8B", ("qwen3", "qwen3_moe", "qwen3_next"), "", ENABLE, "qwen3", "hermes"),
    Family("Qwen3-VL", "Qwen/Qwen3-VL-8B-Thinking", ("qwen3_vl", "qwen3_vl_moe"), "", ENABLE, "qwen3", "hermes"),
    Family("Qwen3.5", "Qwen/Qwen3.5-27B", ("qwen3_5", "qwen3_5_moe"), "", ENABLE, "qwen3", "qwen3_coder"),
    Family("QwQ", "Qwen/QwQ-32B", ("qwen2",), r"qwq", NO_SWITCH, "deepseek_r1", "hermes"),
    Family("Qwen2.5", "Qwen/Qwen2.5-7B-Instruct", ("qwen2", "qwen2_moe"), r"qwen", tools="hermes"),
    Family("gpt-oss", "openai/gpt-oss-20b", ("gpt_oss",), "", NO_SWITCH, "openai_gptoss", "openai", always=True),
    Family("GLM-4.7", "zai-org/GLM-4.7", ("glm4_moe", "glm4_moe_lite"), r"4\.7", ENABLE, "glm47", "glm47"),
    Family("GLM-4.5, GLM-4.6", "zai-org/GLM-4.5-Air", ("glm4_moe", "glm4v_moe"), "", ENABLE, "glm45", "glm45"),
    Family("GLM-5", "zai-org/GLM-5", ("glm_moe_dsa",), "", ENABLE, "glm47", "glm47"),
    Family("Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking", ("kimi_k2",), r"thinking", NO_SWITCH, "kimi_k2", "kimi_k2", always=True),
    Family("Kimi-K2", "moonshotai/Kimi-K2-Instruct", ("kimi_k2",), tools="kimi_k2"),
    Family("Kimi-K2.5", "moonshotai/Kimi-K2.5", ("kimi_k25",), "", THINKING, "kimi_k2", "kimi_k2"),
    Family("MiniMax-M2", "MiniMaxAI/MiniMax-M2", ("minimax_m2",), "", NO_SWITCH, "minimax_m2", "minimax_m2", always=True),
    Family("Granite 3", "ibm-granite/granite-3.3-8b-instruct", ("granite", "granitemoe"), "", THINKING, "granite", "granite"),
    Family("Granite 4", "ibm-granite/granite-4.0-h-small", ("granitemoehybrid",), tools="granite4"),
    Family(
        "Nemotron 3", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ("nemotron_h",), r"nemotron-3", ENABLE, "nemotron_v3", "qwen3_coder"
    ),
    Family(
        "Seed-OSS",
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        ("seed_oss",),
        "",
        _kwarg("thinking_budget", -1, 0),
        "seed_oss",
        "seed_oss",
        "<seed:think>",
    ),
    Family(
        "ERNIE-4.5-Thinking",
        "baidu/ERNIE-4.5-21B-A3B-Thinking",
        ("ernie4_5_moe",),
        r"thinking",
        NO_SWITCH,
        "ernie45",
        "ernie45",
        always=True,
    ),
    Family("Hunyuan-A13B", "tencent/Hunyuan-A13B-Instruct", ("hunyuan_v1_moe",), "", ENABLE, "hunyuan_a13b", "hunyuan_a13b"),
    Family("Hy3", "tencent/Hy3", ("hy_v3",), "", _kwarg("reasoning_effort", "high", "no_think"), "hy_v3", "hy_v3"),
    Family("MiMo", "XiaomiMiMo/MiMo-V2-Flash", ("mimo", "mimo_v2_flash"), "", ENABLE, "mimo", "mimo"),
    Family("Gemma 4", "google/gemma-4-31b-it", ("gemma4", "gemma4_unified"), "", ENABLE, "gemma4", "gemma4", "<|channel>"),
    Family(
        "Magistral",
        "mistralai/Magistral-Small-2509",
        ("mistral", "mistral3"),
        r"magistral",
        NO_SWITCH,
        "mistral",
        "mistral",
        "[THINK]",
        always=True,
    ),
    Family("Mistral", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", ("mistral", "mistral3", "ministral3"), tools="mistral"),
    Family(
        "Command A Reasoning",
        "CohereLabs/command-a-reasoning-08-2025",
        ("cohere2",),
        r"reasoning",
        _kwarg("reasoning"),
        "cohere_command3",
        "cohere_command3",
        "<|START_THINKING|>",
    ),
    Family("Olmo 3", "allenai/Olmo-3-32B-Think", ("olmo3",), "", NO_SWITCH, "olmo3", "olmo3"),
    Family("Step-3.5", "stepfun-ai/Step-3.5-Flash", ("step3p5",), "", NO_SWITCH, "step3p5", "step3p5"),
    Family("EXAONE 4", "LGAI-EXAONE/EXAONE-4.0-32B", ("exaone4",), "", ENABLE, "deepseek_v3", "hermes"),
    Family("SmolLM3", "HuggingFaceTB/SmolLM3-3B", ("smollm3",), "", ENABLE, "qwen3", "hermes"),
    Family("Phi-4-reasoning", "microsoft/Phi-4-reasoning-plus", ("phi3",), r"phi-4.*reasoning", NO_SWITCH, "deepseek_r1", always=True),
    Family("Phi-4-mini", "microsoft/Phi-4-mini-instruct", ("phi3",), r"phi-4-mini", tools="phi4_mini_json"),
    Family("Llama 4", "meta-llama/Llama-4-Scout-17B-16E-Instruct", ("llama4",), tools="llama4_pythonic"),
    Family("Llama 3", "meta-llama/Llama-3.1-8B-Instruct", ("llama",), r"llama-?3", tools="llama3_json"),
)

# For models without a row: their template decides whether, and by which switch, they think.
OTHERS: tuple[Family, ...] = (
    Family("other models, enable_thinking", "", (), "", ENABLE, "qwen3"),
    Family("other models, thinking", "", (), "", THINKING, "holo2"),
)
QUIET_PARSER = "deepseek_v3"  # for such a model that thinks only when told to: by default it parses text as an answer, not as thinking


def family_of(kinds: Sequence[str], names: Sequence[str]) -> Family | None:
    """The row of a model. ``kinds``: `model_type` of its configuration and of the text model within; ``names``: its path and what clients
    call it."""
    for family in FAMILIES:
        if set(kinds) & set(family.kinds) and any(re.search(family.named, name, re.IGNORECASE) for name in names):
            return family
    return None
