"""Files over HTTP under `SourceRules`: every connection is checked, also after a redirect."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

import fsspec

from connectors.credentials import masked
from connectors.errors import SourceError
from connectors.paths.rules import SourceRules, host_of

if TYPE_CHECKING:
    from aiohttp import ClientSession, TCPConnector
    from aiohttp.abc import ResolveResult

MOST_S = 300.0  # for one answer: fsspec asks for 5 MiB at a time
SILENT_S = 30.0  # without a byte of it


def open_web(uri: str, rules: SourceRules) -> fsspec.AbstractFileSystem:
    """A file system that connects only to what ``rules`` permit. Raises `SourceError` if they do not permit ``uri`` itself."""
    import aiohttp

    async def client(**options: Any) -> ClientSession:
        timeout = aiohttp.ClientTimeout(total=MOST_S, sock_connect=SILENT_S, sock_read=SILENT_S)
        return aiohttp.ClientSession(connector=checked_connector(rules), timeout=timeout, **options)

    _check_first(uri, rules)
    return fsspec.filesystem(uri.partition(":")[0].lower(), get_client=client, skip_instance_cache=True)


def checked_connector(rules: SourceRules) -> TCPConnector:
    """A connector for a client session: connects only to what ``rules`` permit, else raises `OSError`. Call it on the event loop."""
    import aiohttp
    from aiohttp.abc import AbstractResolver

    allowed: set[str] = set()  # addresses that a permitted name resolved to

    class Resolver(AbstractResolver):
        """Looks a name up once, so that what was checked is what is connected to."""

        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
            found = await aiohttp.ThreadedResolver().resolve(host, port, family)
            kept = [one for one in found if rules.permits(host, ipaddress.ip_address(one["host"]))]
            if not kept:
                raise OSError(f"{host} leads to an address that this server does not read")
            allowed.update(one["host"] for one in kept)
            return kept

        async def close(self) -> None:
            return

    def connect(address: Any) -> socket.socket:
        host = str(address[4][0])
        if host not in allowed and not rules.permits(host, ipaddress.ip_address(host)):
            raise OSError(f"{host} is an address that this server does not read")
        return socket.socket(address[0], address[1], address[2])

    return aiohttp.TCPConnector(resolver=Resolver(), socket_factory=connect)


def _check_first(uri: str, rules: SourceRules) -> None:
    """Check ``uri`` first, for a clear message: fsspec reports any failure as a missing file."""
    host = host_of(uri)
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise SourceError(f"cannot read {masked(uri)}: the host {host!r} is not known; check the address") from error
    refused = [address for address in found if not rules.permits(host, ipaddress.ip_address(address.partition("%")[0]))]
    if len(refused) == len(found):
        raise SourceError(
            f"{masked(uri)} leads to {refused[0]}, which this server does not read for its clients; "
            "list the host under sources.hosts in the server's config"
        )
