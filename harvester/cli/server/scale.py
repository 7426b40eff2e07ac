"""`harvester scale`: another number of replicas while they serve."""

from __future__ import annotations

from typing import Annotated

import typer

from harvester.cli.invocation import Invocation, command

app = typer.Typer()


@command(app)
def scale(
    here: Invocation,
    replicas: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of replicas.")],
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model that they serve. Default: the first.")] = None,
) -> None:
    """Have the running server use another number of replicas.

    Chats go on: a replica that leaves ends those that it has, and gives its slices back. The number holds until the server is started
    again; `replicas` in its config is for good.

    \b
    Example:
        harvester scale 3
        harvester scale 2 --model small
    """
    with here.reach()[0] as client:
        found = client.scale(replicas, model)
    if here.json:
        here.print_json(found)
        return
    print(f"{found['replicas']} replica(s), {found['was']} before; until the server is started again")
