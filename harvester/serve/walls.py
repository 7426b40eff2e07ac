"""Who may ask: requests that another site made a browser send (CSRF) are refused, and those without an API key where keys are given."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from harvester.errors import CrossSiteError, HarvesterError, KeyRefusedError

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REFUSED = "this server needs an API key, but {what}; send one of its keys as Authorization: Bearer KEY (for commands: HARVESTER_API_KEY)"


class CrossSiteWall:
    """ASGI middleware. A change must not come from another origin: without a key it would look like the user's own.

    Where ``hosts`` is given, the server must be called by an address, ``localhost`` or one of them. Else a foreign name could be made to
    point here (DNS rebinding), and its pages read the answers.

    A client that is no browser sends neither `Sec-Fetch-Site` nor `Origin` and passes. ``answer`` makes the application's own of a refusal.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None = None, answer: Callable[[HarvesterError], Response] | None = None
    ) -> None:
        self._app = app
        self._answer = answer or plain_answer
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is not None:
            await self._answer(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> CrossSiteError | None:
        host = headers.get("host", "")
        if self._hosts is not None and not self._is_known(host):
            name = _name(host)[:80]
            return CrossSiteError(
                f"this server does not accept the host name {name!r}; use localhost, or add the name to allowed_hosts in its config"
            )
        if method in SAFE or _same_site(headers, host):
            return None
        origin = headers.get("origin", "another site")[:80]
        return CrossSiteError(f"a request from a page of {origin} is refused; use this server's own page, or a program")

    def _is_known(self, host: str) -> bool:
        assert self._hosts is not None
        name = _name(host)
        return name == "localhost" or name in self._hosts or _is_address(name)


def plain_answer(error: HarvesterError) -> Response:
    return JSONResponse(error.to_json(), error.http_status)


def _same_site(headers: Headers, host: str) -> bool:
    """By `Sec-Fetch-Site` if the browser sends it, else by comparing `Origin` with the host called."""
    fetched = headers.get("sec-fetch-site")
    if fetched is not None:
        return fetched in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _name(host: str) -> str:
    """Without port and brackets, in lower case."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def known_hosts(host: str, allowed: Collection[str]) -> Collection[str] | None:
    """Names of a server that listens on ``host``. None: any, for one that listens to the network has names that we cannot know."""
    return tuple(allowed) if host in LOOPBACK else None


class KeyWall:
    """ASGI middleware. Without ``keys`` none is asked for. ``open_below``: a path that everybody may read, such as ``/page/``.

    ``answer`` makes the application's own of a refusal. The body of a refused request is not read.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], answer: Callable[[HarvesterError], Response], open_below: str | None = None
    ) -> None:
        self._app = app
        self._keys = [_digest(key) for key in keys]
        self._answer = answer
        self._open_below = open_below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _digest(key.strip()) if scheme.lower() == "bearer" else None
        if given is not None and any(hmac.compare_digest(given, one) for one in self._keys):
            await self._app(scope, receive, send)
        else:
            what = "none was sent" if given is None else "the one sent is unknown"
            await self._answer(KeyRefusedError(_REFUSED.format(what=what)))(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._open_below is not None and path.startswith(self._open_below)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
