"""`harvester serve --address` on the head of a fleet, with scripted replicas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from bench.harness.fleet.machines import Fleet, environment
from bench.harness.servers.server import ServerProcess, scripted

JOINED: dict[str, Any] = {"host": "0.0.0.0", "access": {"no_keys": True}}


class JoinedServer(ServerProcess):
    """Use it inside the head's network (`Machine.inside`). On exit its applications are gone from the cluster."""

    def __init__(self, fleet: Fleet, state: Path, *, delay_s: float = 0.0, **config: Any) -> None:
        ServerProcess.__init__(self, scripted(self._joined(fleet, config), delay_s), state)
        self.fleet = fleet
        self.head = fleet.head
        self._command = self.head.command("env", *(f"{name}={value}" for name, value in _given().items()), *self._command)

    @staticmethod
    def _joined(fleet: Fleet, config: dict[str, Any]) -> dict[str, Any]:
        return {"address": fleet.address, **JOINED, **config}

    def configure(self, **config: Any) -> None:
        """Set the config of its next start."""
        self._command[self._command.index("--config") + 1] = json.dumps(self._joined(self.fleet, config))

    def processes(self) -> list[psutil.Process]:
        """Only the processes that this server started: the cluster is not its own."""
        return [psutil.Process(self.pid)] if self.is_running else []

    def start_again(self) -> None:
        """Start it again after its machine was switched off, as that machine's service manager would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self.start()


def _given() -> dict[str, str]:
    return {name: value for name, value in environment().items() if os.environ.get(name) != value}
