"""The ports that a server's replicas listen on."""

from __future__ import annotations

import socket
from pathlib import Path

from harvester.ports import RANGE_PORTS, REPLICAS, SERVERS, free_port, free_range


def test_a_range_of_ports_that_another_server_uses_is_passed_over() -> None:
    first = free_range(7)[0]
    assert free_range(7) == range(first, first + RANGE_PORTS)
    with socket.socket() as replica:
        replica.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        replica.bind(("127.0.0.1", first + 1))
        replica.listen()
        assert free_range(7)[0] == first + RANGE_PORTS
    assert first in REPLICAS[::RANGE_PORTS]


def test_a_range_whose_last_ports_are_used_is_passed_over() -> None:
    first = free_range(7)[0]
    with socket.socket() as metrics:
        metrics.bind(("127.0.0.1", first + RANGE_PORTS - 1))
        metrics.listen()
        assert free_range(7)[0] == first + RANGE_PORTS


def test_a_free_port_is_none_that_the_system_gives_to_others() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        assert server.getsockname()[1] in SERVERS
    assert max(SERVERS.stop, REPLICAS.stop) <= lowest
