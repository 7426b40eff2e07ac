"""Scenario ``soak``: jobs and chats on a real server whose processes are killed, one after the other, for as long as is asked.

Ray, Serve, HAProxy, ledger and runner are real, the engine is scripted: a row's answer is its last word, so that a wrong one shows.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import httpx
import psutil

from bench.harness.load.table import tail_of, write_synthetic
from bench.harness.options import Options
from bench.harness.record import ROOT, commit
from bench.harness.servers.server import READY_S, ServerProcess
from bench.scenarios.soak.probe import Probe
from jobs.access.handle import HEADER, read_key, signed
from jobs.folder import StateFolder

HISTORY = ROOT / "bench" / "results" / "soak.json"  # its kills are added to
ROWS = 4000  # of a job; another is submitted when one has ended
DELAY_S = 0.3
CALM_S = 15.0  # between two kills
QUICK_S, USUAL_S = 60.0, 600.0
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
NOT_TRIED = ("engine core and workers: the engine is scripted", "uploads", "a full disk", "clock jumps (libfaketime)")


class Soak:
    def __init__(self, server: ServerProcess, folder: Path, seed: int) -> None:
        self._server, self._folder, self._random = server, folder, Random(seed)
        self.jobs: dict[str, int] = {}  # rows by id
        self.kills: list[dict[str, Any]] = []

    def submit(self) -> None:
        path = self._folder / f"docs-{len(self.jobs)}.parquet"
        write_synthetic(path, ROWS, len(self.jobs))
        request = {"source": {"uri": str(path)}, "task": "echo", "task_inline": {"prompt": "{text}", "max_tokens": 8}, "keep": []}
        body = json.dumps(request).encode()
        key = read_key(StateFolder(self._server.state))
        assert key is not None
        headers = {"content-type": "application/json", HEADER: signed(key, "POST", "/api/jobs", body, time.time())}
        answer = httpx.post(f"{self._server.url}/api/jobs", content=body, headers=headers, timeout=60.0)
        answer.raise_for_status()
        self.jobs[str(answer.json()["job"]["id"])] = ROWS

    def begin(self) -> None:
        """The first job, as soon as it is taken: HAProxy may know of a replica a moment after the server is ready."""
        end_s = time.monotonic() + READY_S
        while not self.jobs:
            try:
                self.submit()
            except httpx.HTTPError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.3)

    def ended(self) -> bool | None:
        """Whether every job has; None where nobody answers now."""
        try:
            answer = httpx.get(f"{self._server.url}/api/jobs", timeout=5.0)
            return all(job["ended_at_s"] is not None for job in answer.raise_for_status().json()["jobs"])
        except httpx.HTTPError:
            return None

    def kill(self, role: str) -> bool:
        """Whether there was one. A main process is started again by whoever watches over it: here that is us."""
        found = [] if role == "main" else [one for one in self._server.processes() if _is(one, role)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if role == "main":
            main = psutil.Process(self._server.pid)
            main.kill()
            main.wait()
            self._server.start()
        return bool(found) or role == "main"

    def work(self, seconds: float, probes: dict[str, Probe]) -> None:
        end_s = time.monotonic() + seconds
        roles: list[str] = []
        self._calm(probes)
        while time.monotonic() < end_s:
            roles = roles or self._random.sample(sorted(ROLES), len(ROLES))
            role, began_s = roles.pop(), time.monotonic()
            if not self.kill(role):
                continue
            self._calm(probes)
            shut = {name: round(probe.longest_s(began_s), 2) for name, probe in probes.items()}
            self.kills.append({"role": role, "shut_s": shut})

    def _calm(self, probes: dict[str, Probe]) -> None:
        """Some seconds, and until jobs and chats are answered again; more work where there is none."""
        end_s = time.monotonic() + READY_S
        calm_s = time.monotonic() + CALM_S
        while time.monotonic() < calm_s or not all(probe.is_open for probe in probes.values()) or (state := self.ended()) is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"the server did not come back within {READY_S:.0f} s")
            time.sleep(0.3)
        if state:
            with contextlib.suppress(httpx.HTTPError):
                self.submit()

    def finish(self) -> None:
        end_s = time.monotonic() + READY_S
        while not self.ended() and time.monotonic() < end_s:
            time.sleep(0.5)

    def rows(self) -> dict[str, int]:
        """Against what was submitted: an outsider's reading of the parts."""
        found = {"expected": sum(self.jobs.values()), "lost": 0, "twice": 0, "wrong": 0}
        for job, rows in self.jobs.items():
            parts = StateFolder(self._server.state).results(job)
            has_parts = any(parts.glob("part-*.parquet"))
            query = f"select row_id, output from read_parquet('{parts}/part-*.parquet')"
            read = duckdb.execute(query).fetchall() if has_parts else []
            ids = {row_id for row_id, _ in read}
            found["lost"] += len(set(range(rows)) - ids)
            found["twice"] += len(read) - len(ids)
            found["wrong"] += sum(output != tail_of(row_id) for row_id, output in read)
        return found


def _is(process: psutil.Process, role: str) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    word = ROLES[role]
    return bool(line) and (Path(line[0].split(" ")[0]).name == word if role in PROGRAMS else word in " ".join(line))


def run(options: Options) -> dict[str, Any]:
    seconds = options.seconds or (QUICK_S if options.quick else USUAL_S)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        words = ("-m", "bench.harness.servers.scripted_server", "--delay", str(DELAY_S), "--config", json.dumps({"replicas": 2}))
        with ServerProcess(words, folder / "state") as server:
            probes = {"api": Probe(server.url, False), "chat": Probe(server.url, True)}
            for probe in probes.values():
                probe.start()
            soak = Soak(server, folder, options.seed)
            try:
                soak.begin()
                soak.work(seconds, probes)
                soak.finish()
            finally:
                for probe in probes.values():
                    probe.end()
            rows = soak.rows()
    return {
        "systems": {"harvester": _summary(soak.kills, rows, probes)},
        "kills": soak.kills,
        "not_tried": list(NOT_TRIED),
        **_added(soak.kills),
    }


def _summary(kills: list[dict[str, Any]], rows: dict[str, int], probes: dict[str, Probe]) -> dict[str, Any]:
    longest = {
        role: {name: max(kill["shut_s"][name] for kill in kills if kill["role"] == role) for name in probes}
        for role in sorted({kill["role"] for kill in kills})
    }
    asked = {name: {"answered": probe.answered, "failed": probe.failed} for name, probe in probes.items()}
    return {"kills": len(kills), "rows": rows, "longest_shut_s": longest, "probes": asked}


def _added(kills: list[dict[str, Any]]) -> dict[str, Any]:
    """Kills of this run and of those before, by commit."""
    try:
        before = dict(json.loads(HISTORY.read_text(encoding="utf-8"))["kills_by_commit"])
    except (OSError, ValueError, KeyError):
        before = {}
    here = commit() or "unknown"
    total = before | {here: before.get(here, 0) + len(kills)}
    return {"kills_by_commit": total, "kills_in_all": sum(total.values())}
