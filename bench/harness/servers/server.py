"""A harvester server as a process of its own: started, waited for, stopped or killed, and its memory watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from harvester.cli.invocation import server_file
from harvester.cli.server.local import last_word
from harvester.errors import EngineError
from harvester.ports import free_port
from harvester.serve.processes import mark_of, marked, stop_marked

READY_S = 600.0  # a machine that is short of memory or cores reads its libraries slowly
STOP_S = 60.0
FAILS_ONCE = "SCRIPTED_FAILS_ONCE"  # variable of scripted replicas: path of a file


def scripted(config: dict[str, Any], delay_s: float) -> tuple[str, ...]:
    """Arguments for a `ServerProcess` with scripted replicas (`bench.harness.servers.scripted_server`)."""
    return ("-m", "bench.harness.servers.scripted_server", "--config", json.dumps(config), "--delay", str(delay_s))


class ServerProcess:
    """``arguments`` follow the interpreter; ``--state`` and ``--port`` are added. Ready on enter; on exit all its processes are gone."""

    def __init__(self, arguments: Sequence[str], state: Path) -> None:
        self.state = state
        self.mark = mark_of(state)
        self.log = state.with_name(f"{state.name}.log")
        self.ready_s: float | None = None  # seconds from the start until it answered
        self._command = [sys.executable, *arguments, "--state", str(state), "--port", ""]
        self.listen_on(free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def listen_on(self, port: int) -> None:
        """Call it before `start`."""
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self._command[-1] = str(port)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server, also again after it was stopped or killed."""
        began_s = time.monotonic()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - began_s
        return self

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end_s = time.monotonic() + READY_S
        while not ((told := server_file(self.state)).get("pid") == process.pid and "url" in told):
            if process.poll() is not None:
                raise EngineError(f"the server did not start: {last_word(self.log)}; its log is {self.log}")
            if time.monotonic() >= end_s:
                raise EngineError(f"the server was not ready after {READY_S:.0f} s: {last_word(self.log)}; its log is {self.log}")
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """All living processes of the server; the first one started, if it lives, comes first."""
        first = [psutil.Process(self.pid)] if self.is_running else []
        return [*first, *(process for process in marked(self.mark) if process not in first)]

    def kill(self) -> int:
        """SIGKILL for every process at once, as a machine's memory killer or a power cut would. Returns how many there were."""
        found = self.processes()
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if self._process is not None:
            self._process.wait()
            self._process = None
        psutil.wait_procs(found, timeout=10.0)
        return len(found)

    def stop(self) -> None:
        """Ask it to end, and after `STOP_S` end its process group and whatever carries its mark."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        stop_marked(self.mark)
