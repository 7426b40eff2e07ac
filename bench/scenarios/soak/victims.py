"""Which processes of a server are killed, by what they do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from bench.harness.servers.server import ServerProcess

ROLES = {
    "replica": "ServeReplica:chat",
    "ledger": "LedgerHost",
    "jobs app": "ServeReplica:jobs",
    "files app": "ServeReplica:files",
    "batches app": "ServeReplica:batches",
    "controller": "ServeController",
    "ingress manager": "HAProxyManager",
    "haproxy": "haproxy",
    "gcs": "gcs_server",
    "raylet": "raylet",
    "main": "",
}
PROGRAMS = ("haproxy", "gcs", "raylet")


def kill(server: ServerProcess, role: str) -> bool:
    """Kill the processes of a role; returns whether there was one. A main process is restarted by its supervisor: here, by us."""
    if role == "main":
        main = psutil.Process(server.pid)
        main.kill()
        main.wait()
        server.start()
        return True
    found = [one for one in server.processes() if _is(one, role)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(found)


def _is(process: psutil.Process, role: str) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    word = ROLES[role]
    return bool(line) and (Path(line[0].split(" ")[0]).name == word if role in PROGRAMS else word in " ".join(line))
