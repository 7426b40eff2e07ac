"""Resident memory of a server while it works, by the role of its processes."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

import psutil

from bench.harness.servers.server import ServerProcess

PERIOD_S = 0.5
OWN = ("driver", "ledger", "jobs_app", "files_app", "batches_app", "replica")  # what harvester brings; the others are Ray's
_ROLES = (  # part of a process's title → its role; Ray names a worker after what runs in it
    ("LedgerHost", "ledger"),
    ("ServeReplica:jobs", "jobs_app"),
    ("ServeReplica:files", "files_app"),
    ("ServeReplica:batches", "batches_app"),
    ("ServeReplica:chat", "replica"),
    ("ServeController", "serve"),
    ("ProxyActor", "serve"),
    ("HAProxy", "serve"),
    ("haproxy", "serve"),
    ("VLLM", "engine"),
    ("EngineCore", "engine"),
)


class MemoryWatch:
    """Samples in a thread while the block runs. Resident size counts a page once for each process that shares it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._samples: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._samples.append(self._sample())
            if self._end.wait(PERIOD_S):
                return

    def _sample(self) -> dict[str, int]:
        sizes: defaultdict[str, int] = defaultdict(int)
        for process in self._server.processes():
            try:
                role = "driver" if process.pid == self._server.pid else role_of(process)
                sizes[role] += process.memory_info().rss
            except (psutil.Error, AssertionError):
                continue
        return dict(sizes)

    def peaks(self) -> dict[str, Any]:
        """MiB: the peak of each role, of harvester's own processes together, and of Ray's together; and the number of samples."""
        roles = sorted({role for sample in self._samples for role in sample})
        return {
            "by_role_mib": {role: _mib(max(sample.get(role, 0) for sample in self._samples)) for role in roles},
            "own_mib": _mib(max(sum(size for role, size in sample.items() if role in OWN) for sample in self._samples)),
            "ray_mib": _mib(max(sum(size for role, size in sample.items() if role not in OWN) for sample in self._samples)),
            "samples": len(self._samples),
        }


def role_of(process: psutil.Process) -> str:
    title = f"{process.name()} {' '.join(process.cmdline()[:2])}"
    return next((role for part, role in _ROLES if part in title), "ray")


def _mib(size: int) -> float:
    return round(size / 2**20, 1)
