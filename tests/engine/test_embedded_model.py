"""The embedded model's folder: what is in it, what its tokenizer and chat template do, and that it is made once and whole."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from harvester.engine.embedded import EMBEDDED_NOTE, embedded_model
from harvester.engine.embedded.folder import FOLDER_NAME
from harvester.engine.embedded.weights import tensor_shapes
from harvester.errors import StorageError

pytestmark = pytest.mark.engine

NOTHING_SHIPPED = Path("/nowhere")
PROCESSES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded_model(tmp_path_factory.mktemp("models"), shipped=NOTHING_SHIPPED)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_weights_are_float32_and_are_what_the_config_describes(folder: Path) -> None:
    from safetensors.numpy import load_file

    config = read_json(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == tensor_shapes(config)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    assert config["torch_dtype"] == config["dtype"] == "float32"


def test_the_library_that_reads_configs_sees_the_same_llama(folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    assert (config.model_type, str(config.dtype)) == ("llama", "torch.float32")
    assert config.max_position_embeddings == 8192
    assert config.rope_parameters["rope_theta"] == 1e6


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
    assert len(tokenizer.encode(" the people of America", add_special_tokens=False)) == 4


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


def test_a_second_call_leaves_the_folder_as_it_is(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert embedded_model(folder.parent, shipped=NOTHING_SHIPPED) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_two_machines_make_the_same_model(folder: Path, tmp_path: Path) -> None:
    other = embedded_model(tmp_path, shipped=NOTHING_SHIPPED)
    assert contents(other) == contents(folder)


def test_weights_that_the_package_ships_are_taken_and_nothing_is_made(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "config.json").write_text("{}", encoding="utf-8")
    assert embedded_model(tmp_path / "models", shipped=shipped) == shipped
    assert not (tmp_path / "models").exists()


def make_when_all_are_ready(models_dir: Path, barrier: Any, made: Any) -> None:
    barrier.wait(timeout=60)
    made.put(str(embedded_model(models_dir, shipped=NOTHING_SHIPPED)))


def test_processes_that_make_it_at_once_leave_one_whole_folder_and_no_drafts(folder: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, made = context.Barrier(PROCESSES), context.Queue()
    makers = [context.Process(target=make_when_all_are_ready, args=(tmp_path, barrier, made)) for _ in range(PROCESSES)]
    for maker in makers:
        maker.start()
    paths = {made.get(timeout=120) for _ in makers}
    for maker in makers:
        maker.join()
    assert paths == {str(tmp_path / FOLDER_NAME)}
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER_NAME]
    assert contents(tmp_path / FOLDER_NAME) == contents(folder)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file stands where the folder should", encoding="utf-8")
    with pytest.raises(StorageError, match=r"models/embedded-1: .*--state"):
        embedded_model(tmp_path / "models", shipped=NOTHING_SHIPPED)


def test_the_note_is_one_line_that_says_noise_and_names_a_real_model() -> None:
    assert "\n" not in EMBEDDED_NOTE
    assert "noise" in EMBEDDED_NOTE
    assert "harvester serve --model Qwen/Qwen3-8B" in EMBEDDED_NOTE
