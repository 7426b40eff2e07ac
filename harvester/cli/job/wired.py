"""A connection of `harvester.api` to the server of a command, for a server of another machine or user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harvester.api.errors import HarvesterError as ApiError
from harvester.api.errors import RefusedError
from harvester.api.uploads import upload
from harvester.api.wire import Address, Wire
from harvester.cli.client import Client
from harvester.client_environment import default_api_key
from harvester.errors import from_json


def is_elsewhere(client: Client) -> bool:
    """Whether the server is another user's, or another machine's: it then reads and writes files that are not ours."""
    return client.is_user() is False


@contextmanager
def wired(client: Client) -> Iterator[Wire]:
    """A `harvester.api` connection to the same server."""
    wire = Wire(Address(client.url, default_api_key()))
    try:
        yield wire
    finally:
        wire.close()


def uploaded(client: Client, path: Path) -> str:
    """Bring a file, folder or glob of this machine to the server. Returns its address there."""
    with translated(), wired(client) as wire:
        return wire.run(upload(path))


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of `harvester.api` as those of the CLI, which have exit codes."""
    try:
        yield
    except ApiError as error:
        status = 400 if isinstance(error, RefusedError) else 500
        raise from_json({"error": {"code": error.code, "message": error.message}}, status) from error
