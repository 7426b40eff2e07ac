"""Report the server's state to systemd (``Type=notify``), if systemd started it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """``state``: ``READY=1``, ``STOPPING=1`` or ``STATUS=...``. Nothing happens without ``NOTIFY_SOCKET``."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
