"""`python -m bench gpu`: every part on a CPU with a tiny model, without Ray, DuckDB and pyarrow; what it needs; how it resumes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import command
from bench.gpu.carry import carried
from bench.gpu.command import PARTS, measure
from bench.gpu.load.arrivals import phased_load, trace_load
from bench.gpu.outcome import Outcome
from bench.gpu.part import Part
from bench.gpu.residuals import graph_of, kind_of, residuals
from bench.gpu.run_config import SHAPES, RunConfig
from harvester.errors import UsageError

RUN_CONFIG = RunConfig("tiny", cpu=True, quick=True, seed=0)
WALL = """
import sys
from importlib.abc import MetaPathFinder

class Wall(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("ray", "duckdb", "pyarrow"):
            raise ImportError(f"{name} is not on this machine")

sys.meta_path.insert(0, Wall())
"""


def bench(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(WALL)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "bench", "gpu", "--tiny", "--quick", *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=2400, check=False)


def check(parts: dict[str, Any]) -> None:
    """Check the parts that were run."""
    if versions := parts.get("versions"):
        assert versions["summary"]["executor"] == "mp"
    if identity := parts.get("identity"):
        assert identity["summary"]["tokens_identical"] is True, identity["summary"]
    if preempt := parts.get("preempt"):
        assert preempt["runs"]["mp-on"]["ended"] > 0
    if profile := parts.get("profile"):
        assert {name.partition("/")[0] for name in profile["runs"]["harvester"]["kinds"]} == {"decode", "prefill", "mixed"}
    if coserve := parts.get("coserve"):
        for system in ("online_only", "vllm_priority-2048", "harvester"):
            assert {"trace-0", "phases"} == set(coserve["runs"][system]["loads"])
        assert coserve["runs"]["harvester"]["loads"]["trace-0"]["offline_tokens_per_s"] > 0
    if checkpoint := parts.get("checkpoint"):
        assert checkpoint["runs"]["checkpoint"]["stored_blocks"] > 0
        assert checkpoint["summary"]["store_over_link"] > 0


@pytest.mark.timeout(2500)
@pytest.mark.parametrize("chosen", [pytest.param(("profile",), id="one part"), pytest.param(PARTS, id="all parts", marks=pytest.mark.long)])
def test_parts_run_without_ray_duckdb_and_pyarrow_and_are_passed_over_the_second_time(chosen: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    words = ["--json", str(output), *(word for part in chosen for word in ("--part", part))]
    done = bench(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-4000:]
    parts = json.loads(output.read_text())["parts"]
    assert tuple(parts) == tuple(chosen)
    check(parts)
    again = bench(tmp_path, *words)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stderr.count("done before") == len(chosen)
    assert json.loads(output.read_text())["parts"] == parts


def scripted(calls: list[str], broken: set[str]) -> Part:
    def run(name: str) -> Any:
        def work(run_config: RunConfig, found: Any) -> dict[str, Any]:
            calls.append(f"{name} after {','.join(found)}")
            if name in broken:
                raise RuntimeError("no such device")
            return {"value": len(calls)}

        return work

    return Part({name: run(name) for name in ("one", "two", "three")}, lambda found: {"runs": len(found)})


def test_a_run_that_failed_is_the_only_one_that_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, broken, path = list[str](), {"two"}, tmp_path / "gpu.json"
    monkeypatch.setattr(importlib, "import_module", lambda name: type("Module", (), {"PART": scripted(calls, broken)}))
    assert not measure("preempt", RUN_CONFIG, Outcome(path, RUN_CONFIG, {}), again=False)
    assert calls == ["one after ", "two after one", "three after one"]
    assert json.loads(path.read_text())["parts"]["preempt"]["runs"]["two"]["error"] == "RuntimeError: no such device"
    broken.clear()
    assert measure("preempt", RUN_CONFIG, Outcome(path, RUN_CONFIG, {}), again=False)
    assert calls[3:] == ["two after one,three"]
    assert measure("preempt", RUN_CONFIG, Outcome(path, RUN_CONFIG, {}), again=False)
    assert len(calls) == 4
    assert measure("preempt", RUN_CONFIG, Outcome(path, RUN_CONFIG, {}), again=True)
    assert len(calls) == 7


def test_a_file_of_other_arguments_is_not_mixed_with_new_results(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    Outcome(path, RUN_CONFIG, {}).close("versions", {})
    with pytest.raises(UsageError, match="other arguments"):
        Outcome(path, RunConfig("qwen3-8b", cpu=False, quick=False, seed=0), {})
    path.write_text("[]")
    with pytest.raises(UsageError, match="no result of this bench"):
        Outcome(path, RUN_CONFIG, {})


def test_what_is_carried_is_enough_to_import_every_part(tmp_path: Path) -> None:
    files = carried()
    root = Path(command.__file__).resolve().parents[2]
    for name in files:
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((root / name).read_bytes())
    modules = [
        *(f"bench.gpu.parts.{part}" for part in PARTS),
        "bench.__main__",
        "bench.gpu.engines.recording",
        "bench.harness.engine.counting_harvest",
        "bench.harness.engine.patient",
    ]
    modules += ["harvester.engine.vllm.worker.workers", "harvester.engine.vllm.connector"]
    (tmp_path / "tree" / "sitecustomize.py").write_text(WALL)
    script = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; print(importlib.import_module('bench').__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "tree")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("tree/bench/__init__.py")
    assert not [name for name in files if name.startswith(("harvester/serve/", "harvester/cli/"))]
    of_rooms = [name for name in files if name.startswith(("jobs/", "connectors/")) and name.count("/") > 1]
    shared = {"connectors/processes": ["pickled"], "jobs/access": ["limits", "marks"]}
    expected = [f"{room}/{name}.py" for room, names in shared.items() for name in ("__init__", *names)]
    assert sorted(of_rooms) == expected, "else only what their rooms share"


WEIGHTS = {"llama-3.1-8b": 8.03e9, "qwen3-8b": 8.19e9, "qwen3-32b": 32.76e9}  # as their makers give them


@pytest.mark.parametrize("shape", WEIGHTS)
def test_every_shape_has_as_many_weights_as_its_model(shape: str) -> None:
    config = json.loads((SHAPES / shape / "config.json").read_text())
    width, kv, heads = config["hidden_size"], config["num_key_value_heads"], config["num_attention_heads"]
    attention = 2 * width * config["head_dim"] * (heads + kv)
    layer = attention + 3 * width * config["intermediate_size"]
    weights = config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width
    assert weights == pytest.approx(WEIGHTS[shape], rel=0.005)


def test_the_loads_are_the_papers_and_the_same_for_every_system() -> None:
    trace = trace_load(4.0, 30.0, 1.0, (4096, 512), seed=3)
    assert trace == trace_load(4.0, 30.0, 1.0, (4096, 512), seed=3)
    assert len(trace) == 120
    assert 0.0 <= trace[0].at_s <= trace[-1].at_s <= 30.0
    phases = phased_load(4.0, 10.0, (1024, 128), seed=3)
    assert not [chat for chat in phases if 10.0 <= chat.at_s < 20.0]
    assert {int(chat.at_s // 10.0) for chat in phases} == {0, 2}


MODES = {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_sizes": [1, 2, 4, 512]}


@pytest.mark.parametrize(
    ("prefill", "decodes", "picked", "kind", "graph"),
    [
        (0, 8, MODES, "decode", "full"),
        (100, 8, MODES, "mixed", "piecewise"),
        (100, 0, MODES, "prefill", "piecewise"),
        (2000, 0, MODES, "prefill", "none"),
        (0, 8, MODES | {"cudagraph_mode": "PIECEWISE"}, "decode", "piecewise"),
        (0, 8, {"cudagraph_mode": "NONE", "cudagraph_sizes": []}, "decode", "none"),
    ],
)
def test_a_step_is_told_by_its_kind_and_by_the_graph_that_it_ran_as(
    prefill: int, decodes: int, picked: dict[str, Any], kind: str, graph: str
) -> None:
    row = (0.0, prefill, decodes, 0, 0.01, 0.02)
    assert (kind_of(row), graph_of(row, picked)) == (kind, graph)
    assert residuals([row, (1.0, prefill, decodes, 0, None, 0.5)], picked)[f"{kind}/{graph}"]["steps"] == 1
