"""`harvester serve --address` on the head of a fleet, with scripted replicas, and what is told of it from the head's network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from bench.harness.servers.server import READY_S
from tests.fleet.machines import Fleet, environment
from tests.real_server import _line
from tests.scripted_server import NAMES, OWN, ScriptedServer

JOINED: dict[str, Any] = {"host": "0.0.0.0", "access": {"no_keys": True}}


class FleetServer(ScriptedServer):
    """Use it inside the head's network (`Machine.inside`). Left, its applications have gone from the cluster."""

    def __init__(self, fleet: Fleet, state: Path, *, delay_s: float = 0.0, **config: Any) -> None:
        super().__init__(state, delay_s=delay_s, **self._joined(fleet, config))
        self.fleet = fleet
        self.head = fleet.head
        self._command = self.head.command("env", *(f"{name}={value}" for name, value in _given().items()), *self._command)

    @staticmethod
    def _joined(fleet: Fleet, config: dict[str, Any]) -> dict[str, Any]:
        return {"address": fleet.address, **JOINED, **config}

    def configure(self, **config: Any) -> None:
        """For its next start."""
        self._command[self._command.index("--config") + 1] = json.dumps(self._joined(self.fleet, config))

    def find(self, role: str) -> list[psutil.Process]:
        """On every machine."""
        found = [process for machine in self.fleet.machines for process in machine.processes()]
        if role in OWN:
            return [process for process in found if Path(_line(process).split(" ")[0]).name == role]
        return [process for process in found if NAMES[role] in _line(process)]

    def processes(self) -> list[psutil.Process]:
        """Those alone that this server has started itself: the cluster is another's."""
        return [psutil.Process(self.pid)] if self._process is not None and self._process.poll() is None else []

    def where(self, role: str) -> list[str]:
        return self.fleet.where(NAMES[role])

    def harvester(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the CLI on the head."""
        command = self.head.command(sys.executable, "-m", "harvester", *words)
        env = environment({"HARVESTER_STATE": str(self.state)})
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=READY_S)

    def redeploy(self, config: dict[str, Any], delay_s: float) -> None:
        words = ("-m", "tests.fleet.redeploy", self.fleet.address, str(self.state), json.dumps({**JOINED, **config}), str(delay_s))
        subprocess.run(self.head.command(sys.executable, *words), env=environment(), check=True, timeout=READY_S)


def _given() -> dict[str, str]:
    return {name: value for name, value in environment().items() if os.environ.get(name) != value}
