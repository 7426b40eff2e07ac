"""Refuses requests that a foreign page, or a foreign host name for this server, made a browser send."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from harvester.errors import CrossSiteError

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginCheck:
    """``hosts``: host names to accept beside localhost and IP addresses; None: all. ``origins``: of pages that may call the server.

    A foreign host name could be made to point here (DNS rebinding), so that its pages read the answers. A page of another site could make
    the user's browser change something, or read what its script is shown. Clients that are no browsers send neither `Sec-Fetch-Site`
    nor `Origin`, and pass.
    """

    def __init__(self, hosts: Collection[str] | None = None, origins: Collection[str] = ()) -> None:
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self.origins = {origin.lower() for origin in origins}

    def check(self, method: str, headers: Headers) -> None:
        """Raises `CrossSiteError`."""
        host = headers.get("host", "")
        if not self._is_known(host):
            name = _name(host)[:80]
            raise CrossSiteError(
                f"this server does not accept the host name {name!r}; use localhost, or add the name to allowed_hosts in its config"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() in self.origins:
            return
        if not _is_from_here(method, origin, headers.get("sec-fetch-site"), headers.get("sec-fetch-mode"), host):
            raise CrossSiteError(
                f"a request from a page of {(origin or 'another site')[:80]} is refused; use this server's own page or a program, "
                "or add the page to access.origins in its config"
            )

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return self._hosts is None or name == "localhost" or name in self._hosts or is_address(name)


def _is_from_here(method: str, origin: str | None, site: str | None, mode: str | None, host: str) -> bool:
    """Whether no foreign page sent it: by `Sec-Fetch-Site` if given, else by `Origin` and host. Links from elsewhere may be followed."""
    if site is not None:
        return site in ("same-origin", "none") or (method in SAFE and mode == "navigate" and origin is None)
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _name(host: str) -> str:
    """The host name without port and brackets, in lower case."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a server that listens on ``host`` is reached from its own machine alone."""
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def known_hosts(host: str, allowed: Collection[str]) -> Collection[str] | None:
    """Host names that a server listening on ``host`` accepts. None: any, because one on the network has names that we cannot know."""
    return tuple(allowed) if allowed or is_loopback(host) else None
