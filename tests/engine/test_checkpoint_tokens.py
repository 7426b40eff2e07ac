"""A real engine whose requests lose their KV again and again answers token for token what stock vLLM with KV enough answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

TWO_CORES = len(os.sched_getaffinity(0)) >= 2
MANY = int(os.environ.get("HARVESTER_TEST_REQUESTS", "500"))
SOME = MANY // 12
MODES: dict[str, tuple[int, tuple[str, ...], dict[str, Any], dict[str, str]]] = {
    "eager": (MANY, (), {}, {}),
    "async": (SOME, ("--chaos", "0.3"), {"async_scheduling": True}, {}),
    "faults": (SOME, ("--faults",), {}, {}),
    "tensor-parallel": (SOME, ("--chaos", "0.2"), {"tensor_parallel_size": 2}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
    "pipeline-parallel": (SOME, (), {"pipeline_parallel_size": 2}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
}


def child(folder: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    output, log = folder / "found.json", folder / "log.txt"
    command = [sys.executable, "-m", "tests.engine.checkpoint_child", "--models", str(folder / "models"), "--output", str(output), *words]
    with log.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | (env or {}), timeout=900, check=False)
    assert done.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    tokens: list[list[int]] = child(tmp_path_factory.mktemp("stock"), "--stock", "--requests", str(MANY))["tokens"]
    return tokens


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_stock_vllm_however_often_requests_lose_their_kv(mode: str, stock: list[list[int]], tmp_path: Path) -> None:
    count, words, engine, env = MODES[mode]
    if mode.endswith("parallel") and not TWO_CORES:
        pytest.skip("two ranks need two cores")
    found = child(tmp_path, "--requests", str(count), "--engine", json.dumps(engine), *words, env=env)
    counts = found["counts"]
    different = [number for number in range(count) if found["tokens"][number] != stock[number]]
    assert different == [], f"{len(different)} of {count} answers differ"
    assert counts["resumed"] > 2 * count, "the requests were to lose their KV several times each"
    again = counts["edge_tokens"] + counts["uncovered_tokens"]
    assert again < 0.02 * counts["lost_tokens"]
    assert (counts["failed_tokens"] > 0) == (mode == "faults")
