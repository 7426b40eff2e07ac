"""A real server (Ray, Serve, HAProxy, ledger, runner) whose replicas are scripted, and what is told of it from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.harness.load.stream import Stream
from bench.harness.servers.server import READY_S, ServerProcess, scripted
from tests.real_server import ROLES, RealServer, line_of

OWN = ("gcs_server", "raylet", "haproxy")  # programs by name, not Python processes
NAMES = ROLES | {"controller": "ServeController", "ingress manager": "HAProxyManager"}


class ScriptedServer(RealServer):
    def __init__(self, state: Path, *, delay_s: float = 0.0, **config: Any) -> None:
        ServerProcess.__init__(self, scripted(config, delay_s), state)

    def find(self, role: str) -> list[psutil.Process]:
        found = self.processes()
        if role in OWN:
            return [process for process in found if Path(line_of(process).split(" ")[0]).name == role]
        return [process for process in found if NAMES[role] in line_of(process)]

    def kill_main(self) -> None:
        """SIGKILL for the process that was started, and no other."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.wait()

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]

    def redeploy(self, config: dict[str, Any], delay_s: float) -> None:
        """Deploy the chat application anew, from another process, as an operator would."""
        (raylet,) = self.find("raylet")
        command = [sys.executable, "-m", "tests.serve.redeploy", str(self.state), json.dumps(config), str(delay_s)]
        subprocess.run(command, env=raylet.environ() | {"PYTHONPATH": str(Path.cwd())}, check=True, timeout=READY_S)


def wait_until(condition: Any, what: str) -> None:
    end_s = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < end_s, f"waited {READY_S} s for {what}"
        time.sleep(0.1)


def whole(streams: Sequence[Stream]) -> list[bool]:
    for stream in streams:
        stream.join(READY_S)
    return [stream.whole for stream in streams]
