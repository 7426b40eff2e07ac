"""Check that a server's port leads to its applications: Serve reports that they run before its ingress knows them."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping

from harvester.errors import EngineError

ANSWER_S = 5.0
PATIENCE_S = 300.0  # of a busy machine
ELSEWHERE_S = 60.0  # to wait for the ports of other machines
LOOK_S = 0.2
SURE = 2  # looks in a row: during a reload, the old HAProxy takes connections too
UNKNOWN = 404  # an application that does not have the path, or an ingress that has no application for it
UNREACHED = 500  # and above: no replica answered the ingress


def host_here(host: str) -> str:
    """Host at which a client on this machine reaches a server that listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def url_here(host: str, port: int) -> str:
    """URL at which a client on this machine reaches a server that listens on ``host``."""
    here = host_here(host)
    return f"http://{f'[{here}]' if ':' in here else here}:{port}"


class Reach:
    """Probes a port as a client on this machine. ``paths``: one of each application."""

    def __init__(self, host: str, port: int, paths: tuple[str, ...]) -> None:
        self._host, self._port, self._paths = host, port, paths
        self._looks = 0  # consecutive looks at which every path was answered
        self._since_s: float | None = None  # of the first look

    def is_whole(self) -> bool:
        """Look once more; true after `SURE` successes in a row. Raises `EngineError` if a path is missing after `PATIENCE_S` of looks."""
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
        """Whether the path's application answers. Asked with OPTIONS, which needs no key and is not counted."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            connection.request("OPTIONS", path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return status != UNKNOWN and status < UNREACHED


def unreached(ports: Mapping[str, Reach], is_over: Callable[[], bool]) -> list[str]:
    """Look at each of ``ports`` until it is whole, ``is_over()``, or `ELSEWHERE_S` have passed. Returns the names of those that are not."""
    end_s = time.monotonic() + ELSEWHERE_S
    left = dict(ports)
    while left:
        for name, port in list(left.items()):
            if is_over() or time.monotonic() >= end_s:
                return list(left)
            if port.is_whole():
                del left[name]
        if left:
            time.sleep(LOOK_S)
    return []
