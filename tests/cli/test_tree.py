"""Help is a product: every command explains itself, shows an example and speaks JSON."""

from __future__ import annotations

import re
import shlex
from typing import cast

import pytest
import typer.core
import typer.main

from harvester.cli.main import app
from harvester.cli.tree import PLACES

COMMANDS = cast(typer.core.TyperGroup, typer.main.get_command(app)).commands
CONTRACT = {
    "serve", "stop", "submit", "jobs", "show", "watch", "cancel", "pause", "resume", "retry", "rm", "results", "sql", "chat", "tasks",
    "key", "scale", "profile", "doctor", "env", "verify", "repair",
}  # fmt: skip


def test_the_commands_of_the_contract_are_all_there():
    assert set(COMMANDS) == CONTRACT


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_for_itself_and_for_each_parameter(name, cli):
    shown = cli(name, "--help")
    assert shown.exit_code == 0
    assert len((COMMANDS[name].help or "").split("\n")[0]) > 10
    bare = [param.name for param in COMMANDS[name].params if not getattr(param, "help", None)]
    assert bare == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_commands_help_has_an_example_that_its_own_parser_takes(name, cli):
    shown = cli(name, "--help", env={"COLUMNS": "200"}).output
    lines = re.findall(rf"^ +(?:.*\| )?(harvester {name}\b.*)$", shown.split("Example:")[1].split("Options:")[0], re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line.split(" > ")[0])[2:]
        COMMANDS[name].make_context(name, words).close()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_takes_json_and_the_options_that_all_share(name):
    options = {option for param in COMMANDS[name].params for option in param.opts}
    assert {"--json", "--state", "--url", "--debug"} <= options


def test_the_summaries_in_the_list_of_commands_are_not_cut(cli):
    listed = cli("--help").output.split("Commands:")[1]
    assert "..." not in listed
    assert len(listed.strip().splitlines()) == len(CONTRACT)


def test_the_list_says_of_each_command_what_its_own_help_begins_with():
    assert {
        name: (COMMANDS[name].help or "").startswith(line.split(";")[0].rstrip(".")) for name, (_, line) in PLACES.items()
    } == dict.fromkeys(CONTRACT, True)


def test_the_version_is_printed(cli):
    assert cli("--version").output == "harvester 0.1.0\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_every_parameter_is_made_of_sentences(name):
    texts = {param.name: getattr(param, "help", None) or "" for param in COMMANDS[name].params}
    assert {key: text for key, text in texts.items() if not re.fullmatch(r"[A-Z-].+\.", text) or len(text.split()) < 3} == {}
