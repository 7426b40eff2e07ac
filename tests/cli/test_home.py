"""Paths that begin with the home folder of a user who is unknown on this machine: one clear error, wherever they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harvester.api.client import Calls
from harvester.api.errors import HarvesterError as ApiError
from harvester.api.flow import Step, Work, drive
from harvester.config import parse_config
from harvester.engine.launch.adapters import placed
from harvester.engine.launch.models import choose_model
from harvester.errors import ConfigError, SourceError, TaskError
from jobs.access.secrets import looked_up
from jobs.config import SecretConfig
from jobs.tasks.load import load_task

PATH = "~no-such-user/mine.yaml"


def test_a_task_file() -> None:
    with pytest.raises(TaskError, match=rf"^cannot read task file {PATH}: No such file or directory; give the path of a YAML file$"):
        load_task(PATH)


def test_a_secret_s_file() -> None:
    with pytest.raises(SourceError, match=rf"^secret shop: cannot read file {PATH}; check that the server's user may read it$"):
        looked_up("shop", SecretConfig(file=PATH, prefix="postgres://db/"))


def test_an_upload() -> None:
    def do(step: Step) -> Any:
        assert isinstance(step, Work), "nothing is sent"
        return step.call()

    calls: Calls[Any] = Calls(None, lambda view, model: view)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=PATH):
        drive(calls.upload(PATH), do)


def test_a_model_and_an_adapter() -> None:
    with pytest.raises(ConfigError, match=r"^model folder ~no-such-user/m does not exist; give a Hugging Face model folder or id"):
        choose_model("~no-such-user/m", None)
    config = parse_config({"adapters": {"a": "~no-such-user/a"}}, "test")
    with pytest.raises(
        ConfigError, match=r"^adapter a: .*/adapter_config\.json cannot be read: No such file or directory; give the folder"
    ):
        placed(config.adapters, "m", elsewhere=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("submit", "docs.parquet", "--task", PATH), f"error: cannot read task file {PATH}: No such file or directory\n"),
        (("tasks", PATH), f"error: cannot read task file {PATH}: No such file or directory; give the path of a YAML file\n"),
        (
            ("--state", "~no-such-user/s", "jobs"),
            "error: the state folder ~no-such-user/s: there is no such user here; give its whole path\n",
        ),
    ],
    ids=["submit", "tasks", "state"],
)
def test_a_command_says_so_in_one_line(
    cli: Any, words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs.parquet").touch()
    assert cli(*words).stderr == says
