"""The embedded model's folder: what is in it, and what its tokenizer and chat template do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harvester.engine.embedded import EMBEDDED_NAME, EMBEDDED_NOTE, embedded_model
from harvester.engine.launch.models import choose_model
from harvester.errors import ConfigError

pytestmark = pytest.mark.engine

MAX_BYTES = 12_000_000


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def test_the_folder_is_small_enough_for_a_wheel_and_holds_its_card(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < MAX_BYTES
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "not a language model to use" in card
    assert "harvester serve --model Qwen/Qwen3-8B" in card


def test_the_weights_are_those_that_the_config_describes(folder: Path) -> None:
    from safetensors.numpy import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, local_files_only=True))
    tensors = load_file(folder / "model.safetensors")
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters() if name != "lm_head.weight"}
    assert {name: tensor.shape for name, tensor in tensors.items()} == shapes
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float16"}


def test_the_library_that_reads_configs_sees_the_same_llama(folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    assert (config.model_type, str(config.dtype)) == ("llama", "torch.float32")
    assert config.max_position_embeddings == 8192
    assert config.rope_parameters["rope_theta"] == read_json(folder / "config.json")["rope_theta"]


def test_every_token_has_an_embedding(folder: Path, tokenizer: Any) -> None:
    assert len(tokenizer) == read_json(folder / "config.json")["vocab_size"] == 4096


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The state of the union is strong.",
        "  two spaces, a tab\t, a line\r\n\nend  ",
        "naïve café, Straße, Ελληνικά, русский",
        "你好,世界 — こんにちは",
        "👩‍👩‍👧 🎉 \u0000 \u200b \ufeff",
        '{"json": [1, 2.5, null]}',
    ],
    ids=["empty", "english", "blanks", "european", "east asian", "emoji and controls", "json"],
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_common_words_of_the_speeches_are_one_token_each(tokenizer: Any) -> None:
    assert [tokenizer.decode(token) for token in tokenizer.encode("the people of America", add_special_tokens=False)] == [
        "the",
        " ",
        "people",
        " of",
        " ",
        "America",
    ]


def test_a_plain_prompt_starts_with_the_start_token(tokenizer: Any) -> None:
    assert tokenizer.encode("hello")[0] == tokenizer.bos_token_id
    assert tokenizer.decode(tokenizer.encode("hello"), skip_special_tokens=True) == "hello"


def test_the_chat_template_writes_each_role_and_asks_for_the_assistant(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye\n"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("<|start|><|system|>Be brief.<|end|><|user|>Hello?<|end|><|assistant|>Hello.<|end|><|user|>Bye\n<|end|><|assistant|>")


def test_the_chat_template_without_a_generation_prompt_ends_with_the_last_turn(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text == "<|start|><|user|>Hi<|end|>"


def test_the_chat_template_refuses_a_role_it_does_not_know(tokenizer: Any) -> None:
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match="not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_the_end_of_a_turn_stops_a_generation(folder: Path, tokenizer: Any) -> None:
    stop = tokenizer.convert_tokens_to_ids("<|end|>")
    assert read_json(folder / "generation_config.json")["eos_token_id"] == stop
    assert read_json(folder / "config.json")["eos_token_id"] == stop


def test_an_installation_without_the_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks the embedded model .*--model"):
        embedded_model(tmp_path)


def test_without_a_model_the_embedded_one_is_chosen_and_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    choice = choose_model(None, None)
    assert (choice.path, choice.name, choice.note, choice.embedded) == (str(folder), EMBEDDED_NAME, EMBEDDED_NOTE, True)


def test_the_note_is_one_line_that_says_toy_and_names_a_real_model() -> None:
    assert "\n" not in EMBEDDED_NOTE
    assert "toy" in EMBEDDED_NOTE
    assert "harvester serve --model Qwen/Qwen3-8B" in EMBEDDED_NOTE
