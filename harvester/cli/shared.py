"""Options allowed before and after a command. Imports little: the program reads them before it loads any command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StateOption = Annotated[Path | None, typer.Option("--state", metavar="DIR", help="State folder. Also: HARVESTER_STATE.")]
UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="URL of the server. Also: HARVESTER_URL.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def remember(ctx: typer.Context, state: Path | None, url: str | None, debug: bool) -> None:
    """Store options given before or after the command name; the later one wins."""
    given = {"state": state, "url": url, "debug": debug or None}
    ctx.meta.update({f"harvester.{name}": value for name, value in given.items() if value is not None})
