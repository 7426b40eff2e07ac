"""A real `harvester serve` in a process group of its own, and ways to kill its parts."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psutil

from bench.harness.servers.server import READY_S, ServerProcess
from harvester.serve.processes import marked
from jobs.access.handle import HEADER, read_key, signed
from jobs.storage.folder import StateFolder

ROLES = {"replica": "ServeReplica:chat", "ledger": "LedgerHost", "jobs app": "ServeReplica:jobs", "batches app": "ServeReplica:batches"}
PARENTS = {"engine core": "replica", "worker": "engine core"}


class RealServer(ServerProcess):
    def __init__(self, state: Path, config: Path) -> None:
        super().__init__(("-m", "harvester", "serve", "--json", "--config", str(config)), state)

    def find(self, role: str) -> list[psutil.Process]:
        """By name or, where the name may be that of any Python process, by what started it."""
        if role in PARENTS:
            return [child for parent in self.find(PARENTS[role]) for child in _children(parent) if "resource_tracker" not in line_of(child)]
        return [process for process in marked(self.mark) if ROLES[role] in line_of(process)]

    def kill_one(self, role: str) -> None:
        """kill -9 one part, once it is there (it may be on its way back from an earlier kill)."""
        end_s = time.monotonic() + READY_S
        while not (found := self.find(role)):
            assert time.monotonic() < end_s, f"no {role} to kill for {READY_S} s"
            time.sleep(0.1)
        for process in found:
            os.kill(process.pid, signal.SIGKILL)

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
        """As the server's own user, so that it reads what the user may."""
        key, body = read_key(StateFolder(self.state)), json.dumps(request).encode()
        assert key is not None
        headers = {"content-type": "application/json", HEADER: signed(key, "POST", "/api/jobs", body, time.time())}
        answer = httpx.post(f"{self.url}/api/jobs", content=body, headers=headers, timeout=120)
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


def line_of(process: psutil.Process) -> str:
    """Its command line; empty for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def ids(state: Path, job: str) -> list[int]:
    """The oracle: every row_id that can be read from the results, as an outsider reads them."""
    parts = state / "jobs" / job / "results"
    if not list(parts.glob("part-*.parquet")):
        return []
    return [row[0] for row in duckdb.execute(f"SELECT row_id FROM read_parquet('{parts}/part-*.parquet') ORDER BY row_id").fetchall()]
