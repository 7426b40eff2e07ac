"""Whether a port can be listened on."""

from __future__ import annotations

import socket

from harvester.errors import HarvesterError


class PortError(HarvesterError):
    code = "port"


def check_port(host: str, port: int) -> None:
    """Raise `PortError` if the port cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use" if error.errno == 98 else f"cannot be used ({error.strerror})"
            raise PortError(f"port {port} on {host} {reason}; stop what listens there or choose another with --port") from error
