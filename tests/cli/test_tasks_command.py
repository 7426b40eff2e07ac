"""`harvester tasks`."""

from __future__ import annotations

import json

import yaml

from jobs.tasks.file import parse_task
from jobs.tasks.load import list_tasks, load_task


def test_every_built_in_task_is_listed_with_its_options(cli):
    shown = cli("tasks").stdout
    for task in list_tasks():
        assert task.name in shown
        assert all(f"--{option}" in shown for option in task.options)
    assert [task["name"] for task in json.loads(cli("tasks", "--json").stdout)["tasks"]] == [task.name for task in list_tasks()]


def test_a_printed_task_is_a_task_file_of_the_same_meaning(cli):
    printed = cli("tasks", "classify").stdout
    assert parse_task(yaml.safe_load(printed), "printed") == load_task("classify")
    assert json.loads(cli("tasks", "classify", "--json").stdout)["answer"] == "choice"


def test_a_task_file_can_be_printed_by_its_path(cli, tmp_path):
    (tmp_path / "mood.yaml").write_text("prompt: 'Mood of {text}?'\n")
    assert cli("tasks", tmp_path / "mood.yaml").stdout == "prompt: 'Mood of {text}?'\n"


def test_the_help_says_how_a_task_files_options_are_given(cli):
    assert "--option NAME=VALUE" in " ".join(cli("tasks", "--help").stdout.split())
    assert "--option" in cli("submit", "--help").stdout
