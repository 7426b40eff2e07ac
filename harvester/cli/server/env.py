"""`harvester env`: variables for the nodes of a Ray cluster that the server joins."""

from __future__ import annotations

import importlib
import shlex

import typer

from harvester.cli.invocation import Invocation, command

app = typer.Typer()


@command(app)
def env(here: Invocation) -> None:
    """Print the variables that the nodes of a Ray cluster should have.

    Ray reads them when a node starts: eval "$(harvester env)" before ray start on every machine. Then harvester serve --address joins the
    cluster. What replicas need besides, the server sets itself.

    \b
    Example:
        harvester env
    """
    environment = importlib.import_module("harvester.serve.environment")
    variables: dict[str, str] = environment.process_variables() | environment.node_variables()
    if here.json:
        here.print_json(variables)
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
