"""A real `harvester serve` in a process group of its own, and ways to kill its parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import httpx
import psutil

from harvester.ports import free_port
from harvester.serve.processes import mark_of, marked, stop_marked

READY_S = 600.0  # a machine that is short of memory or cores reads its libraries slowly
ROLES = {
    "worker": lambda name: "VllmWorker" in name or "VLLM::Worker" in name,
    "engine core": lambda name: "EngineCore" in name,
    "replica": lambda name: "ServeReplica:chat" in name,
    "ledger": lambda name: "LedgerHost" in name,
    "jobs app": lambda name: "ServeReplica:jobs" in name,
    "batches app": lambda name: "ServeReplica:batches" in name,
}


class RealServer:
    def __init__(self, state: Path, config: Path) -> None:
        self.state, self.config = state, config
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = state.parent / f"{state.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        command = [sys.executable, "-m", "harvester", "serve", "--json", "--config", str(self.config)]
        command += ["--state", str(self.state), "--port", str(self.port)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            if (self.state / "server.json").exists() and json.loads((self.state / "server.json").read_text())["pid"] == self.process.pid:
                return self
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready after {READY_S} s: {self.log.read_text()[-2000:]}")

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        stop_marked(mark_of(self.state))

    def find(self, role: str) -> list[psutil.Process]:
        found = []
        for process in marked(mark_of(self.state)):
            try:
                if ROLES[role](" ".join(process.cmdline())):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill(self, role: str) -> None:
        """kill -9 one part, once it is there (it may be on its way back from an earlier kill)."""
        end_s = time.monotonic() + READY_S
        while not (found := self.find(role)):
            assert time.monotonic() < end_s, f"no {role} to kill for {READY_S} s"
            time.sleep(0.1)
        for process in found:
            os.kill(process.pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        for process in list(marked(mark_of(self.state))):
            try:
                process.kill()
            except psutil.Error:
                continue

    def get(self, path: str) -> dict[str, Any]:
        """GET, waiting while the jobs app or the ledger restarts."""
        end_s = time.monotonic() + READY_S
        while True:
            try:
                answer = httpx.get(f"{self.url}{path}", timeout=30)
                if answer.status_code == 200:
                    return dict(answer.json())
            except httpx.HTTPError:
                pass
            assert time.monotonic() < end_s, f"{path} did not answer for {READY_S} s"
            time.sleep(0.3)

    def submit(self, **request: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/api/jobs", json=request, timeout=120)
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json()["job"])

    def wait_rows(self, job: str, rows: int) -> dict[str, Any]:
        """Until at least ``rows`` rows are done or the job has ended."""
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            view = self.get(f"/api/jobs/{job}")
            if view["rows_ok"] + view["rows_error"] + view["rows_running"] >= rows or view["state"] not in ("queued", "running"):
                return view
            time.sleep(0.2)
        raise AssertionError(f"job {job} stands still: {view}")


def ids(state: Path, job: str) -> list[int]:
    """The oracle: every row_id that can be read from the results, as an outsider reads them."""
    parts = state / "jobs" / job / "results"
    if not list(parts.glob("part-*.parquet")):
        return []
    return [row[0] for row in duckdb.sql(f"SELECT row_id FROM read_parquet('{parts}/part-*.parquet') ORDER BY row_id").fetchall()]
