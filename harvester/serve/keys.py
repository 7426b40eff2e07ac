"""API keys: if the deployment has some, each request must carry one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from harvester.errors import HarvesterError, KeyRefusedError

_REFUSED = "this server needs an API key, but {what}; send one of its keys as Authorization: Bearer KEY (for commands: HARVESTER_API_KEY)"


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
