"""A server joined to a fleet, and what is told of it from the head's network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from bench.harness.fleet.machines import environment
from bench.harness.fleet.server import JOINED, JoinedServer
from bench.harness.servers.server import READY_S
from tests.real_server import line_of
from tests.scripted_server import NAMES, OWN, ScriptedServer


class FleetServer(JoinedServer, ScriptedServer):
    def find(self, role: str) -> list[psutil.Process]:
        """On every machine."""
        found = [process for machine in self.fleet.machines for process in machine.processes()]
        if role in OWN:
            return [process for process in found if Path(line_of(process).split(" ")[0]).name == role]
        return [process for process in found if NAMES[role] in line_of(process)]

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
