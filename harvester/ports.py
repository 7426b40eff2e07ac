"""Picks free TCP ports on which a server will listen some seconds later.

A port that the system picks (bind to port 0) is from the range that it also gives to outgoing connections and to Ray's own processes. A
server starts listening seconds later: by then such a port may be taken. The ports here lie below that range.
"""

from __future__ import annotations

import random
import socket

SERVERS = range(10_000, 20_000)
REPLICAS = range(20_000, 30_000)  # of servers with more than one listener: a range of `RANGE_PORTS` for each
RANGE_PORTS = 100
LOOKED_AT = 10  # first ports of a range that are probed: its ports are used from the first on


def free_port() -> int:
    """A port that nobody listens on now; two concurrent callers are unlikely to get the same. Raises `OSError` where none is left."""
    for port in random.sample(SERVERS, len(SERVERS)):
        if _is_free(port):
            return port
    raise OSError(f"no port from {SERVERS.start} to {SERVERS.stop - 1} is free")


def free_range(wished: int) -> range:
    """`RANGE_PORTS` ports for one server's replicas. Replicas share ports, so two servers in one range would answer for each other.

    ``wished``: where the search begins. A range counts as in use, and is skipped, where one of its first ports or its last is taken.
    """
    count = len(REPLICAS) // RANGE_PORTS
    starts = [REPLICAS[(wished + step) % count * RANGE_PORTS] for step in range(count)]
    ranges = [range(first, first + RANGE_PORTS) for first in starts]
    return next((found for found in ranges if all(map(_is_free, (*found[:LOOKED_AT], *found[-1:])))), ranges[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
