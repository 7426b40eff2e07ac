"""A real engine whose steps of offline work end at random layers, hundreds of times, answers token for token what stock vLLM answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(960)]

TWO_CORES = len(os.sched_getaffinity(0)) >= 2
MODES: dict[str, tuple[dict[str, Any], dict[str, str], float, int]] = {
    "eager": ({}, {}, 0.7, 500),
    "async": ({"async_scheduling": True}, {}, 0.7, 500),
    "compiled": ({"enforce_eager": False}, {}, 0.6, 300),
    "tensor-parallel": ({"tensor_parallel_size": 2}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, 0.5, 200),
}


def child(folder: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    output = folder / "found.json"
    command = [sys.executable, "-m", "tests.engine.tokens_child", "--models", str(folder / "models"), "--output", str(output), *words]
    log = folder / "log.txt"
    with log.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | (env or {}), timeout=900, check=False)
    assert done.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return child(tmp_path_factory.mktemp("stock"), "--stock")


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_stock_vllm_however_often_steps_end_early(mode: str, stock: dict[str, Any], tmp_path: Path) -> None:
    engine, env, chaos, least = MODES[mode]
    if mode == "tensor-parallel" and not TWO_CORES:
        pytest.skip("two ranks need two cores")
    found = child(tmp_path, "--engine", json.dumps(engine), "--chaos", str(chaos), "--least", str(least), env=env)
    assert found["ended"] >= least
    for turn, ours in enumerate(found["tokens"]):
        theirs = stock["tokens"][min(turn, len(stock["tokens"]) - 1)]
        different = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        assert different == [], f"turn {turn}: {len(different)} of {len(theirs)} answers differ"
