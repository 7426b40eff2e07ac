"""`harvester verify` as a command: what it prints of what was found, and its exit codes."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harvester.cli.server import verify as command
from harvester.errors import ConfigError
from jobs.storage.folder import StateFolder

RIGHT = [
    {"part": "tokens", "ok": True, "said": "64 of 64 answers as stock vLLM's"},
    {"part": "kv", "ok": None, "said": "nothing was copied"},
]
WRONG = [*RIGHT, {"part": "signals", "ok": False, "said": "0 of 60 steps asked to end did"}]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A fake `verify`. The first item of the list is what it returns; behind it is what it was called with."""
    asked: list[Any] = [{"ok": True, "parts": RIGHT, "seconds": 101.2, "model": "tiny"}]
    module = ModuleType("harvester.engine.verify.whole")

    def verify(subject: Any, log: Path, say: Any, state: Path) -> dict[str, Any]:
        asked.extend([subject, log, state])
        say("harvester is timed")
        return dict(asked[0])

    module.subject_of = lambda config: config.model  # type: ignore[attr-defined]
    module.verify = verify  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harvester.engine.verify.whole", module)
    monkeypatch.setattr(command, "require_engine", lambda *modules: None)
    return asked


def test_each_part_has_a_line_and_a_machine_that_is_right_ends_with_0(cli: Any, engines: list[Any], state: Path) -> None:
    result = cli("verify", "--model", "some/model")
    assert result.exit_code == 0, result.output
    assert "ok       tokens  64 of 64 answers as stock vLLM's" in result.stdout
    assert "unknown  kv      nothing was copied" in result.stdout
    assert "101 s with model tiny" in result.stdout
    assert engines[1:] == ["some/model", state / "logs" / "verify.log", state]


def test_a_part_that_is_wrong_ends_with_1_and_names_the_log(cli: Any, engines: list[Any], state: Path) -> None:
    engines[0] |= {"ok": False, "parts": WRONG}
    result = cli("verify")
    assert result.exit_code == 1
    assert "wrong    signals  0 of 60 steps asked to end did" in result.stdout
    assert "error: wrong on this machine: signals" in result.stderr
    assert str(state / "logs" / "verify.log") in result.stderr


def test_a_server_begins_in_the_folder_that_it_was_told_to_look_in(cli: Any, engines: list[Any], state: Path) -> None:
    """The documents have it run first, on a machine that has nothing yet."""
    before = os.umask(0o022)
    try:
        assert cli("verify").exit_code == 0
    finally:
        os.umask(before)
    StateFolder(state).prepare()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_json_is_one_object_on_stdout_whatever_else_is_told(cli: Any, engines: list[Any]) -> None:
    result = cli("verify", "--json")
    assert json.loads(result.stdout) == engines[0]
    assert "harvester is timed" in result.stderr


MODELS = "model: org/big\nenv: {A: big}\nmodels:\n  small: {model: org/small, env: {B: small}}\n"


@pytest.mark.parametrize(
    ("words", "verified"),
    [((), ["org/big", "org/small"]), (("--model", "small"), ["org/small"]), (("--model", "org/other"), ["org/other"])],
    ids=["all of them", "one by its name", "another one"],
)
def test_every_model_of_a_configuration_is_verified(
    cli: Any, engines: list[Any], tmp_path: Path, words: tuple[str, ...], verified: list[str]
) -> None:
    config = tmp_path / "harvester.yaml"
    config.write_text(MODELS)
    result = cli("verify", "--config", str(config), *words)
    assert result.exit_code == 0, result.output
    assert engines[1::3] == verified
    assert len(set(engines[2::3])) == len(verified), "a log for each"
    assert len(cli("verify", "--config", str(config), "--json", *words).stdout.splitlines()) == len(verified)


def test_what_is_wrong_of_one_model_is_told_after_all_were_verified(cli: Any, engines: list[Any], tmp_path: Path) -> None:
    config = tmp_path / "harvester.yaml"
    config.write_text(MODELS)
    engines[0] |= {"ok": False, "parts": WRONG}
    result = cli("verify", "--config", str(config))
    assert result.exit_code == 1
    assert engines[1::3] == ["org/big", "org/small"]
    assert result.stderr.count("wrong on this machine: signals") == 2
    assert "verify-small.log" in result.stderr


def test_the_variables_of_one_model_are_not_those_of_the_next(
    cli: Any, engines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, seen = tmp_path / "harvester.yaml", []
    config.write_text(MODELS)
    whole = sys.modules["harvester.engine.verify.whole"]

    def subject_of(config: Any) -> Any:
        seen.append([name for name in ("A", "B") if name in os.environ])
        os.environ.update(config.env)
        return config.model

    monkeypatch.setattr(whole, "subject_of", subject_of)
    assert cli("verify", "--config", str(config)).exit_code == 0
    assert seen == [[], []]


@pytest.mark.parametrize(
    ("text", "name", "verified"),
    [
        ("model: org/big\nserved_model_name: fast\n", "fast", "org/big"),
        ("model: org/big\n", "org/big", "org/big"),
        ("model: /models/big\n", "big", "/models/big"),
        ("model: org/big\nserved_model_name: fast\n", "org/other", "org/other"),
    ],
    ids=["as it is served", "as it is loaded", "a folder's name", "another one"],
)
def test_the_first_model_of_a_configuration_is_known_by_its_name(
    cli: Any, engines: list[Any], tmp_path: Path, text: str, name: str, verified: str
) -> None:
    config = tmp_path / "harvester.yaml"
    config.write_text(text)
    result = cli("verify", "--config", str(config), "--model", name)
    assert result.exit_code == 0, result.output
    assert engines[1] == verified


def test_a_model_that_cannot_be_verified_keeps_no_other_from_it(
    cli: Any, engines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "harvester.yaml"
    config.write_text(MODELS)

    def subject_of(config: Any) -> Any:
        if config.model == "org/big":
            raise ConfigError("there is no model org/big; give another")
        return config.model

    monkeypatch.setattr(sys.modules["harvester.engine.verify.whole"], "subject_of", subject_of)
    result = cli("verify", "--config", str(config))
    assert (result.exit_code, engines[1]) == (1, "org/small")
    assert result.stderr.endswith("error: there is no model org/big; give another\n")
    alone = cli("verify", "--config", str(config), "--model", "org/big")
    assert (alone.exit_code, alone.stderr) == (2, "error: there is no model org/big; give another\n")
