"""LoRA adapters of a configuration as vLLM's arguments, and those that are refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harvester.config import parse_config
from harvester.engine.launch.adapters import adapter_arguments, placed
from harvester.engine.launch.arguments import engine_arguments
from harvester.errors import ConfigError

pytestmark = pytest.mark.engine


def adapter(folder: Path, name: str, config: object) -> str:
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder / name)


def test_folders_say_how_wide_the_room_must_be(tmp_path: Path) -> None:
    paths = {name: adapter(tmp_path, name, {"r": rank}) for name, rank in (("narrow", 4), ("wide", 24))}
    assert adapter_arguments(paths) == {
        "enable_lora": True,
        "max_loras": 2,
        "max_lora_rank": 32,
        "lora_modules": [{"name": name, "path": path} for name, path in paths.items()],
    }


def test_without_adapters_nothing_is_asked_and_of_the_hub_no_rank_is_known() -> None:
    assert adapter_arguments({}) == {}
    found = adapter_arguments({f"a{number}": f"org/a{number}" for number in range(20)})
    assert (found["max_loras"], "max_lora_rank" in found) == (8, False)


def test_the_user_s_own_arguments_win(tmp_path: Path) -> None:
    config = parse_config({"adapters": {"a": adapter(tmp_path, "a", {"r": 8})}, "engine": {"max_loras": 3, "max_lora_rank": 64}}, "test")
    values = engine_arguments(config, "/model", "tiny", cpu=True, embedded=False)
    assert (values["max_loras"], values["max_lora_rank"]) == (3, 64)


def test_a_folder_is_made_absolute_and_an_id_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = adapter(tmp_path, "mine", {"r": 8})
    monkeypatch.chdir(tmp_path)
    assert placed({"a": "./mine", "b": "mine", "c": "org/c"}, "tiny") == {"a": whole, "b": whole, "c": "org/c"}
    assert placed({"a": "/not/here"}, "tiny", elsewhere=True) == {"a": "/not/here"}


def test_adapters_that_are_named_as_vllm_s_argument_are_served_too() -> None:
    from harvester.engine.vllm.launch import namespace

    args, _ = namespace({"model": "m", "lora_modules": [{"name": "a", "path": "org/a"}]})
    assert [(one.name, one.path) for one in args.lora_modules] == [("a", "org/a")]
    with pytest.raises(ConfigError, match=r"engine: lora_modules 0\.path: Field required; name them under adapters instead"):
        namespace({"model": "m", "lora_modules": [{"name": "a"}]})


REFUSED: dict[str, tuple[object, str]] = {
    "no rank": ({"peft_type": "LORA"}, "says no rank `r`; give the folder of a LoRA adapter in PEFT's format"),
    "no adapter at all": ([], "says no rank `r`"),
    "too wide": ({"r": 1024}, "adapter mine has rank 1024; vLLM serves ranks from 1 to 512"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_cannot_be_served_is_refused_in_one_line(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        placed({"mine": adapter(tmp_path, "mine", config)}, "tiny")
    assert message in refused.value.message


def test_what_is_not_there_or_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"adapter mine: /not/here/adapter_config\.json cannot be read: No such file or directory; give the"
    ):
        placed({"mine": "/not/here"}, "tiny")
    with pytest.raises(ConfigError, match="adapter tiny has the name of the model"):
        placed({"tiny": "org/a"}, "tiny")
    with pytest.raises(ConfigError, match=r"adapters and engine\.lora_modules both name LoRA adapters"):
        parse_config({"adapters": {"a": "org/a"}, "engine": {"lora_modules": []}}, "test")
