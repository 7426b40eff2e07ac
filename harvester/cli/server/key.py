"""`harvester key`: make, list and revoke the API keys of a state folder."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from harvester.cli.client import Client, ServerInfo
from harvester.cli.invocation import Invocation, command, server_file
from harvester.cli.job.deadline import parse_deadline
from harvester.cli.table import render
from harvester.core import Role
from harvester.errors import HarvesterError, KeyRefusedError, UsageError
from harvester.serve.access.keys import KeyFile, KeyRecord
from harvester.serve.access.origin import is_loopback
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
    root, is_its = _state_dir(here)
    folder = known_folder(root)
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
        whose = "" if is_its else f" by servers of {root}"
        _say(here, f"Revoked key {name}: it is refused {when}{whose}{last}", name=name, revoked=True)
    else:
        roles = tuple(dict.fromkeys(role or (Role.CHAT, Role.BATCH)))
        expires_at_s = None if expires is None else parse_deadline(expires, time.time(), "--expires")
        made = keys.add(name, roles, expires_at_s, _limits(limit))
        text = f"{made}\nThis is key {name} ({', '.join(roles)}), shown this once; send it as Authorization: Bearer KEY"
        _say(here, f"{text}, or set HARVESTER_API_KEY.", name=name, key=made, roles=roles, expires_at_s=expires_at_s)


def _state_dir(here: Invocation) -> tuple[Path, bool]:
    """The state folder: as given, else that of the server that answers, if it is this user's on this machine.

    And whether that is sure: False where a server answers that may use another folder, which is said on stderr.
    """
    own = here.state_dir
    if here.state_given or _is_served_here(here, own):
        return own, True
    try:
        found = here.try_reach()
    except KeyRefusedError:
        _tell(
            f"warning: the server at {here.url} asks for a key and does not say which state folder it uses; if that is not {own}, "
            "name it with --state"
        )
        return own, False
    if found is None:
        return own, True
    client, info = found
    with client:
        theirs = _its_folder(client, info)
    if theirs is None:
        _tell(
            f"warning: the server at {here.url} uses state folder {info.state}, on another machine or of another user: it may not see keys "
            f"of {own} here; run this on its machine as its user, or name the folder with --state"
        )
        return own, False
    if theirs == own.resolve():
        return own, True
    _tell(f"The server at {here.url} uses state folder {theirs}: so does this command")
    return theirs, True


def _is_served_here(here: Invocation, own: Path) -> bool:
    """Whether the server that is asked is that of this user's own folder, by what lies there."""
    is_asked = here.url_given in (None, server_file(own).get("url"))
    return is_asked and StateFolder(own).is_served()


def _its_folder(client: Client, info: ServerInfo) -> Path | None:
    """The server's state folder, without links. None unless it sees the same folder, and it is this user's.

    Anyone may listen on a port and name any folder, so one of another user is used only where `--state` names it.
    """
    try:
        theirs = Path(info.state).resolve()
        version = theirs / "VERSION"
        is_own = {theirs.stat().st_uid, version.stat().st_uid} == {os.geteuid()} and os.access(version, os.R_OK | os.W_OK)
        return theirs if is_own and client.sees(version) and (_is_near(client) or client.is_user() is not None) else None
    except (OSError, ValueError, RuntimeError, HarvesterError):  # RuntimeError: links in a circle
        return None


def _is_near(client: Client) -> bool:
    """Whether the URL is of this machine. A server of an earlier version does not say which files it sees."""
    return is_loopback(urlsplit(client.url).hostname or "")


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
