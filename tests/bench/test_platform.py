"""Benches and the engines that tests start fit the machine: CPU where vLLM's CPU build is installed, CUDA elsewhere."""

from __future__ import annotations

import ast
import importlib
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from harvester.engine.launch.models import ModelChoice

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "bench" / "papers"  # starts no engine, and says of which kind the simulated ones are
STARTERS = [
    *(path for path in sorted((ROOT / "bench").rglob("*.py")) if SIMULATED not in path.parents),
    *sorted((ROOT / "tests").rglob("*_child.py")),
]


def module(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def test_whether_an_engine_runs_on_a_cpu_is_asked_and_never_written_down() -> None:
    assert len(STARTERS) > 20
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in STARTERS
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and any(given.arg == "cpu" and isinstance(given.value, ast.Constant) for given in call.keywords)
    ]
    assert found == []


@pytest.mark.parametrize(("cpu", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_steps_are_ended_in_float32_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch, cpu: bool, dtype: str) -> None:
    monkeypatch.setattr("bench.scenarios.engine.preempt.on_cpu", lambda: cpu)
    assert module("bench.scenarios.engine.preempt")._dtype() == dtype


def test_on_cuda_the_raw_server_has_harvesters_sizes_and_no_cpu_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    overhead = module("bench.scenarios.engine.overhead")
    monkeypatch.setattr(overhead, "on_cpu", lambda: False)
    raw = overhead._server("raw", tmp_path, ModelChoice("/model", "tiny", None, True))
    given = raw._arguments
    assert (given["max_num_seqs"], given["max_num_batched_tokens"]) == (256, 2048)
    assert {"dtype", "enforce_eager", "worker_cls", "block_size"} & given.keys() == set()
