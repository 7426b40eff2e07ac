"""Uploads a source of this machine for a server that does not read it."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path

from connectors.open import is_attached
from connectors.targets.target import is_table
from harvester.cli.client import Client
from harvester.cli.job.wired import uploaded
from harvester.errors import UsageError
from jobs.spec import JobRequest


def brought(client: Client, request: JobRequest, say: Callable[[str], None]) -> JobRequest:
    """The request, unchanged if the server sees the same files at the same path, else with the address of an upload.

    Raises `UsageError` for a source that cannot be sent.
    """
    uri, table = request.source.uri, request.source.table
    if "://" in uri or is_attached(uri):
        return request  # an address; the server says whether it reads it
    if is_table(uri) and not Path(uri).exists():
        uri, _, table = uri.rpartition(":")
    path = Path(uri)
    first = path if path.exists() else Path(next(glob.iglob(uri, recursive=True), uri))  # noqa: PTH207
    if not first.exists():
        raise UsageError(f"{uri} is not there any more; give a file, a glob, a folder or a database")
    if client.sees(first.resolve()):
        return request
    say(f"Uploading {path} to {client.url}, which does not read it itself")
    source = request.source.model_copy(update={"uri": uploaded(client, path), "table": table})
    return request.model_copy(update={"source": source})
