"""The prompts of rows by the chat templates that models come with: some have no role for the system, some read content as parts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.engine.launch.template import Takes, taken
from jobs.engine import Message, Prompt, RowError, RowRequest

pytestmark = pytest.mark.engine

PLAIN = """{{- bos_token }}
{%- for message in messages %}{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
# As Gemma 2 does: the first message may not be of the system, and user and assistant take turns.
GEMMA = (
    """{%- if messages[0]['role'] == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}{%- endfor %}
"""
    + PLAIN
)
SILENT = """{{- bos_token }}
{%- for message in messages %}{%- if message['role'] in ('user', 'assistant') %}
{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
# As SmolVLM does: a string in the place of the parts shows nothing of its text.
PARTS = """{{- bos_token }}
{%- for message in messages %}{{- '<|' + message['role'] + '|>' }}{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{- part['text'] }}{%- endif %}{%- endfor %}{{- eos_token }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
REFUSING = "{{- raise_exception('Only  user\n and assistant roles are supported!') }}"

SYSTEM: Message = {"role": "system", "content": "Summarize."}
TEXT: Message = {"role": "user", "content": "The ship came in."}
FOLDED: Message = {"role": "user", "content": "Summarize.\n\nThe ship came in."}


class Engine:
    """In the place of an engine: keeps the tokens that it is asked with."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.model_config = SimpleNamespace(get_diff_sampling_param=dict, encoder_config=None)
        self.asked: list[list[int]] = []

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    async def complete(self, name: str, token_ids: list[int], **given: Any) -> Any:
        from harvester.engine.frontend.engine import Generated
        from jobs.usage import NONE_USED

        self.asked.append(token_ids)
        return Generated("yes", "stop", [9], NONE_USED)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model)


def offline_of(engine: Engine, chat_template: str | None) -> Any:
    from harvester.engine.frontend.offline import OfflineEngine

    given: Any = engine
    without: Any = SimpleNamespace(reader=lambda *given: None, adapter=lambda name: None, template_kwargs=lambda rendering: {})
    return OfflineEngine(given, without, without, chat_template, "tiny", 4, None)


async def prompt_of(engine: Engine, chat_template: str | None, *messages: Message) -> str:
    """What the engine is asked, and what `count_tokens` counts."""
    offline = offline_of(engine, chat_template)
    try:
        await offline.complete(RowRequest("row", Prompt(messages, 8, 0.0)))
        assert await offline.count_tokens(messages) == len(engine.asked[-1])
    finally:
        offline.close()
    return str(engine.tokenizer.decode(engine.asked[-1]))


@pytest.mark.parametrize("template", [GEMMA, SILENT], ids=["refuses the system", "leaves the system out"])
async def test_the_system_text_goes_to_the_user_where_the_template_has_no_system(engine: Engine, template: str) -> None:
    assert await prompt_of(engine, template, SYSTEM, TEXT) == "<|start|><|user|>Summarize.\n\nThe ship came in.<|end|><|assistant|>"
    wrong: tuple[Message, Message] = ({"role": "assistant", "content": "No."}, {"role": "user", "content": "Again."})
    asked = await prompt_of(engine, template, SYSTEM, TEXT, *wrong)
    assert asked.endswith("came in.<|end|><|assistant|>No.<|end|><|user|>Again.<|end|><|assistant|>"), "the correction takes turns too"


async def test_a_template_with_a_system_is_given_it(engine: Engine) -> None:
    whole = "<|start|><|system|>Summarize.<|end|><|user|>The ship came in.<|end|><|assistant|>"
    assert await prompt_of(engine, PLAIN, SYSTEM, TEXT) == await prompt_of(engine, None, SYSTEM, TEXT) == whole


async def test_a_template_that_reads_content_as_parts_is_given_parts(engine: Engine) -> None:
    whole = "<|start|><|system|>Summarize.<|end|><|user|>The ship came in.<|end|><|assistant|>"
    assert await prompt_of(engine, PARTS, SYSTEM, TEXT) == whole


async def test_what_a_template_refuses_is_the_row_s_error_with_the_template_s_words(engine: Engine) -> None:
    offline = offline_of(engine, REFUSING)
    asked = Prompt((TEXT,), 8, 0.0)
    try:
        for request in (offline.complete(RowRequest("row", asked)), offline.count_tokens((TEXT,))):
            with pytest.raises(RowError) as refused:
                await request
            told = "the model's chat template refuses this conversation: Only user and assistant roles are supported!"
            assert (refused.value.code, refused.value.message) == ("refused", told)
    finally:
        offline.close()


def test_a_template_that_cannot_be_rendered_is_believed_to_take_everything() -> None:
    def broken(messages: Any) -> str:
        raise KeyError("content")

    assert taken(broken) == Takes()
    assert Takes(system=False).fitted([SYSTEM, TEXT]) == [FOLDED]
    assert Takes(system=False).fitted([TEXT]) == [TEXT]
