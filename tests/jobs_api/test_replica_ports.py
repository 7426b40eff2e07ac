"""The ports that a server's replicas listen on."""

from __future__ import annotations

import socket

from harvester.serve.environment import RANGE_PORTS, free_range


def test_a_range_of_ports_that_another_server_uses_is_passed_over() -> None:
    first = free_range(7)
    assert free_range(7) == first
    with socket.socket() as replica:
        replica.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        replica.bind(("127.0.0.1", first + 1))
        replica.listen()
        assert free_range(7) == first + RANGE_PORTS
    assert (first - 20_000) % RANGE_PORTS == 0
