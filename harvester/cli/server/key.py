"""`harvester key`: make, list and revoke the API keys of a state folder."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from harvester.cli.invocation import Invocation, command
from harvester.cli.job.deadline import parse_deadline
from harvester.cli.table import render
from harvester.core import Role
from harvester.errors import KeyRefusedError, UsageError
from harvester.serve.access.keys import KeyFile, KeyRecord
from jobs.access.limits import Limits
from jobs.storage.folder import StateFolder
from jobs.storage.place import KEYS_S, known_folder

app = typer.Typer()


class Action(StrEnum):
    ADD = "add"
    LIST = "list"
    REVOKE = "revoke"


@command(app)
def key(
    here: Invocation,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="One of add, list and revoke.", show_default=False)],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the key, which owns the jobs made with it.")] = None,
    role: Annotated[list[Role] | None, typer.Option("--role", help="What it may do; can be repeated. Default: chat and batch.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", metavar="WHEN", help="When it ends: 90d, 2030-01-31T18:30.")] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="NAME=N", help="A limit of this key in place of the server's; can be repeated.")
    ] = None,
) -> None:
    """Make, list or revoke API keys. A running server follows at once; with a storage within 5 s.

    The first key closes a server that asked for none. A key is shown once; the state folder keeps its hash. Without --state that is the
    folder of the server that answers here.

    \b
    Example:
        harvester key add ann --role chat --expires 90d --limit requests_per_minute=60
        harvester key list
        harvester key revoke ann
    """
    folder = known_folder(_state_dir(here))
    keys = KeyFile(folder.keys, mirror=folder.mirror)
    if action is Action.LIST:
        _list(here, keys)
        return
    if name is None:
        raise UsageError(f"key {action} needs a name, e.g. harvester key {action} ann")
    folder.prepare()
    if action is Action.REVOKE:
        keys.revoke(name)
        last = "" if keys.read().keys else "; there is no other, and keys are still asked for: make one with harvester key add NAME"
        when = "from now on" if folder.mirror is None else f"within {KEYS_S:.0f} s, by every process that reaches the storage"
        _say(here, f"Revoked key {name}: it is refused {when}{last}", name=name, revoked=True)
    else:
        roles = tuple(dict.fromkeys(role or (Role.CHAT, Role.BATCH)))
        expires_at_s = None if expires is None else parse_deadline(expires, time.time(), "--expires")
        made = keys.add(name, roles, expires_at_s, _limits(limit))
        text = f"{made}\nThis is key {name} ({', '.join(roles)}), shown this once; send it as Authorization: Bearer KEY"
        _say(here, f"{text}, or set HARVESTER_API_KEY.", name=name, key=made, roles=roles, expires_at_s=expires_at_s)


def _state_dir(here: Invocation) -> Path:
    """The state folder: as given, else that of the server that answers, if it is on this machine. Says where the two may differ."""
    own = here.state_dir
    if here.state_given or StateFolder(own).is_served():
        return own
    try:
        found = here.try_reach()
    except KeyRefusedError:
        _tell(
            f"warning: the server at {here.url} asks for a key and does not say which state folder it uses; if that is not {own}, "
            "name it with --state"
        )
        return own
    if found is None:
        return own
    client, info = found
    client.close()
    theirs = Path(info.state)
    if theirs == own:
        return own
    if not os.access(theirs / "VERSION", os.R_OK | os.W_OK):
        _tell(
            f"warning: the server at {here.url} uses state folder {theirs}, not on this machine or of another user: "
            f"it does not see keys of {own}"
        )
        return own
    _tell(f"The server at {here.url} uses state folder {theirs}: so does this command")
    return theirs


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _say(here: Invocation, line: str, **fields: Any) -> None:
    if here.json:
        here.print_json(fields)
    else:
        print(line)


def _list(here: Invocation, keys: KeyFile) -> None:
    found = keys.read().keys
    if here.json:
        here.print_json({"keys": [one.model_dump(mode="json", exclude={"digest"}) for one in found]})
    elif not found:
        print("No keys; make one with: harvester key add NAME")
    else:
        print(*render(("name", "roles", "made", "expires", "limits"), [_row(one) for one in found]), sep="", end="")


def _row(one: KeyRecord) -> tuple[str, ...]:
    own = {} if one.limits is None else one.limits.model_dump(exclude_defaults=True)
    limits = ", ".join(f"{name}={value}" for name, value in own.items())
    return one.name, ", ".join(sorted(one.roles)), _day(one.created_at_s), _day(one.expires_at_s), limits or "the server's"


def _day(at_s: float | None) -> str:
    return "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


def _limits(given: list[str] | None) -> Limits | None:
    """Limits from ``NAME=N`` words. Raises `UsageError` for an unknown or invalid one."""
    if not given:
        return None
    values = dict(one.partition("=")[::2] for one in given)
    try:
        return Limits.model_validate_strings(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"--limit {where}: {first['msg']}; the limits are {', '.join(Limits.model_fields)}") from error
