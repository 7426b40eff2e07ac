"""Engines in processes of their own, which ask fixed questions and write down what came."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.forks import run

LONG = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
TWO_CORES = len(os.sched_getaffinity(0)) >= 2
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@dataclass(frozen=True, slots=True)
class Mode:
    """Mode of an engine. ``depth``: steps in flight at once; ``words``: more of the command line; ``runner_v2``: vLLM's Model Runner V2."""

    engine: dict[str, Any] = field(default_factory=dict)
    depth: int = 1
    words: tuple[str, ...] = ()
    runner_v2: bool = False
    ranks: int = 1
    environment: dict[str, str] = field(default_factory=dict)


def forms(names: Iterable[str], *short: str) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all but ``short`` are left to `make test-long`."""
    return [pytest.param(name, marks=() if name in short else LONG) for name in names]


def child(module: str, folder: Path, *words: str, mode: Mode | None = None) -> dict[str, Any]:
    """What ``python -m tests.engine.{module}`` found. Skips the test where the machine has fewer cores than ranks."""
    mode = mode or Mode()
    if mode.ranks > 1 and not TWO_CORES:
        pytest.skip("two ranks need two cores")
    output, log = folder / "found.json", folder / "log.txt"
    words = ("--models", str(folder / "models"), "--output", str(output), "--engine", json.dumps(mode.engine), *words, *mode.words)
    words += ("--two-steps",) if mode.depth == 2 else ()
    if mode.runner_v2:  # another Triton: from the first import on
        command = [sys.executable, "-m", f"tests.engine.{module}", *words]
        with log.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | _interpreter(), timeout=1500, check=False)
        assert done.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
    else:
        run(module, words, log, mode.environment | (TWO_RANKS if mode.ranks > 1 else {}))
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert found["depth"] >= mode.depth  # more with pipeline stages
    assert found["runner_v2"] == mode.runner_v2
    return found


@cache
def _interpreter() -> dict[str, str]:
    """The environment in which Model Runner V2 runs on a CPU."""
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "triton.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join((str(Path(__file__).parent / "interpreter"), *filter(None, [os.environ.get("PYTHONPATH")])))
    return {"TRITON_FOLDER": done.stdout.strip(), "PYTHONPATH": path}
