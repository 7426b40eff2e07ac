"""`harvester tasks`: list and print tasks."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from harvester.api.client import IMPLIED
from harvester.cli.invocation import Invocation, command
from harvester.cli.table import render
from jobs.tasks.load import list_tasks, load_task

app = typer.Typer()


@command(app)
def tasks(
    here: Invocation,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Built-in task, or path of a task file.", show_default=False)] = None,
) -> None:
    """List the built-in tasks, or print one.

    Prints a task as a YAML file, to copy and change. Set its `options` with `--option NAME=VALUE`; those of the
    built-in tasks also have flags of their own.

    \b
    Example:
        harvester tasks classify > my_task.yaml
        harvester submit docs.parquet --task ./my_task.yaml --option labels=good,bad
    """
    if name is not None:
        _print_task(here, name)
        return
    known = list_tasks()
    if here.json:
        here.print_json({"tasks": [task.model_dump(mode="json") for task in known]})
        return
    rows = [
        [task.name, ", ".join(_option(name, option.required) for name, option in task.options.items()), task.description] for task in known
    ]
    print(*render(("task", "options", "what it does"), rows), sep="", end="")


def _print_task(here: Invocation, name: str) -> None:
    task = load_task(name)
    if here.json:
        here.print_json(task.model_dump(mode="json"))
        return
    built_in = files("jobs.tasks").joinpath("builtin", f"{name}.yaml")
    source = built_in if built_in.is_file() else Path(os.path.expanduser(name))  # noqa: PTH111 - the home of an unknown user stays as it is written
    print(source.read_text(encoding="utf-8"), end="")


def _option(name: str, is_required: bool) -> str:
    flag = f"--{name}" if name in IMPLIED else f"--option {name}=VALUE"
    return flag if is_required else f"[{flag}]"
