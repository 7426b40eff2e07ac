"""Whether a server's port leads to its applications: Serve says that they run before its ingress knows them."""

from __future__ import annotations

import http.client
import time

from harvester.errors import EngineError

ANSWER_S = 5.0
PATIENCE_S = 300.0  # of a busy machine
SURE = 2  # looks in a row: while HAProxy reloads, the one before it takes connections too
ELSEWHERE = 404  # an application that does not have the path, or an ingress that has no application for it
UNREACHED = 500  # and above: the ingress found nobody


def host_here(host: str) -> str:
    """What a client on this machine calls a server that listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def url_here(host: str, port: int) -> str:
    """Of a server that listens on ``host``, for a client on this machine."""
    here = host_here(host)
    return f"http://{f'[{here}]' if ':' in here else here}:{port}"


class Reach:
    """Of the port at ``host``, that a client on this machine uses. ``paths``: one of each application."""

    def __init__(self, host: str, port: int, paths: tuple[str, ...]) -> None:
        self._host, self._port, self._paths = host, port, paths
        self._looks = 0  # in a row that found all
        self._since_s: float | None = None  # of the first look

    def is_whole(self) -> bool:
        """Look once more. Raises `EngineError` after `PATIENCE_S` of looks in vain."""
        missing = next((path for path in self._paths if not self._is_answered(path)), None)
        self._looks = 0 if missing is not None else self._looks + 1
        self._since_s = time.monotonic() if self._since_s is None else self._since_s
        if missing is not None and time.monotonic() - self._since_s > PATIENCE_S:
            raise EngineError(
                f"Ray Serve says that all applications run, but port {self._port} on {self._host} has not led to {missing} "
                f"for {PATIENCE_S:.0f} s; see logs/ray in the state folder"
            )
        return self._looks >= SURE

    def _is_answered(self, path: str) -> bool:
        """By its application: OPTIONS asks what may be sent, which needs no key and is not counted."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            connection.request("OPTIONS", path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return status != ELSEWHERE and status < UNREACHED
