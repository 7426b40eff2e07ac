"""Stock vLLM's own API server, with the same engine arguments but its own scheduler and worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from bench.harness.engine.patient import CLASSES
from bench.harness.servers.server import READY_S
from harvester.errors import EngineError
from harvester.ports import free_port

CORE = ("scheduler_cls", "worker_cls", "additional_config", "scheduling_policy", "async_scheduling")
OURS = (*CORE, "reasoning_parser", "tool_parser", "api_key")  # the last three: harvester has values for them that vLLM lacks


def stock(arguments: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments without what makes the engine harvester's."""
    return {key: value for key, value in arguments.items() if key not in OURS}


class RawServer:
    """A process of vLLM's own server, ready on enter and gone on exit.

    ``arguments``: vLLM's by name. ``patient``: it waits between its processes as harvester does. ``own``: arguments of the peer's own,
    which `stock` does not touch.
    """

    def __init__(self, arguments: dict[str, Any], log: Path, *, patient: bool = False, own: dict[str, Any] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._arguments = stock(arguments) | (CLASSES if patient else {}) | (own or {})
        self._process: subprocess.Popen[bytes] | None = None

    def _words(self) -> list[str]:
        words = ["--host", "127.0.0.1", "--port", str(self.port), "--disable-uvicorn-access-log"]
        for key, value in self._arguments.items():
            flag = f"--{key.replace('_', '-')}"
            if value is True:
                words.append(flag)
            elif value is not False:
                text = value[0] if isinstance(value, list) else json.dumps(value) if isinstance(value, dict) else str(value)
                words += [flag, text]
        return words

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self._words()]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                raise EngineError(f"vLLM's server ended with {self._process.returncode}: {self._log.read_text()[-500:]}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.HTTPError:
                time.sleep(0.2)
        self.__exit__(None, None, None)
        raise EngineError(f"vLLM's server was not ready after {READY_S:.0f} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
