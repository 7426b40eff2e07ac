"""Options that all commands share: state folder, server, output."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from harvester.cli.client import Client, ServerInfo
from harvester.cli.shared import DebugOption, JsonOption, StateOption, UrlOption, remember
from harvester.cli.table import visible
from harvester.client_environment import default_state_dir, default_url
from harvester.errors import HarvesterError, StorageError, UnreachableError, UsageError
from jobs.storage.folder import StateFolder


@dataclass(frozen=True)
class Invocation:
    """``state_given`` and ``url_given`` are what the user named, by option or environment; None where a default holds."""

    state_given: Path | None = None
    url_given: str | None = None
    json: bool = False

    @property
    def state_dir(self) -> Path:
        try:
            return self.state_given or default_state_dir()
        except RuntimeError as error:
            raise UsageError("this user has no home folder, so there is no default for the state folder; give it with --state") from error

    @property
    def url(self) -> str:
        """URL of the server: as given, else from ``server.json`` of the state folder, else the default."""
        return self.url_given or server_file(self.state_dir).get("url") or default_url()

    def reach(self) -> tuple[Client, ServerInfo]:
        """A client of the server, which has just answered. Raises `UnreachableError`.

        If a state folder was given and no URL, a server over another state folder is refused.
        """
        client = Client(self.url)
        try:
            info = client.server()
            if self.state_given and not self.url_given and not _same(Path(info.state), self.state_given):
                raise UnreachableError(
                    f"the server at {self.url} works on {info.state}, not on {self.state_given}; start one with harvester serve --state"
                )
        except HarvesterError:
            client.close()
            raise
        return client, info

    def try_reach(self) -> tuple[Client, ServerInfo] | None:
        try:
            return self.reach()
        except UnreachableError:
            return None

    def local_state(self, info: ServerInfo | None) -> Path:
        """State folder to read files from: as given, else that of the answering server, if it is on this machine.

        Raises `StorageError` where it is another user's.
        """
        is_its = self.state_given is None and info is not None and Path(info.state).is_dir()
        folder = Path(info.state) if info is not None and is_its else self.state_dir
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise StorageError(f"state folder {folder} belongs to another user; run this as that user, or ask the server: POST /api/sql")
        return folder

    def print_json(self, value: object) -> None:
        """One JSON object, on one line, at once."""
        print(visible(json.dumps(value, ensure_ascii=False, default=str)), flush=True)


def server_file(state_dir: Path) -> dict[str, Any]:
    """Content of the state folder's ``server.json``, which has the ``url`` of a ready server; empty if none runs or it cannot be read."""
    try:
        found = json.loads(StateFolder(state_dir).server.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _same(one: Path, other: Path) -> bool:
    return one.expanduser().resolve() == other.expanduser().resolve()


def _current(ctx: typer.Context, as_json: bool) -> Invocation:
    env_state, env_url = os.environ.get("HARVESTER_STATE"), os.environ.get("HARVESTER_URL")
    state = ctx.meta.get("harvester.state") or (Path(env_state) if env_state else None)
    url = ctx.meta.get("harvester.url") or env_url or None
    return Invocation(_at_home(state) if state else None, url.rstrip("/") if url else None, as_json)


def _at_home(state: Path) -> Path:
    """Raises `UsageError` for the home folder of an unknown user, in place of which no folder should be made."""
    try:
        return state.expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"the state folder {state}: there is no such user here; give its whole path") from error


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is an `Invocation`; the shared options are added here."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(ctx: typer.Context, *, state: Path | None, url: str | None, debug: bool, as_json: bool, **given: Any) -> None:
            remember(ctx, state, url, debug)
            function(_current(ctx, as_json), **given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_parameter("ctx", typer.Context), *(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own), *_shared()]
        )
        run.__annotations__ = {item.name: item.annotation for item in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
        return app.command(name)(run)

    return add


def _shared() -> list[inspect.Parameter]:
    options = [("as_json", JsonOption, False), ("state", StateOption, None), ("url", UrlOption, None), ("debug", DebugOption, False)]
    return [_parameter(name, kind, default) for name, kind, default in options]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
