"""Scenario ``jobs``: what the job path costs beside the engine, whether it survives a kill, and how near it comes to vLLM's run-batch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.harness.options import Options
from bench.scenarios.job_path import real_path as realpath
from bench.scenarios.job_path import scripted_path as jobpath
from harvester.errors import ConfigError

ROWS = (100_000, 1_000_000)
QUICK_ROWS = (20_000, 100_000)
SECONDS = 50.0  # of one timed run with a model
QUICK_SECONDS = 15.0
ROWS_PER_SECOND = 8.0  # of the embedded model on two cores; only decides how long a run takes
REPETITIONS, QUICK_REPETITIONS = 5, 2


def run(options: Options) -> dict[str, Any]:
    """Raises `ConfigError` for a model folder that holds none, and what a server or an engine raised that did not do its work."""
    if options.model is not None and not Path(options.model, "config.json").is_file():
        raise ConfigError(f"model folder {options.model} has no config.json; give a Hugging Face model folder, or leave --model out")
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    plan = realpath.Plan(
        model=options.model,
        rows=max(32, round(seconds * ROWS_PER_SECOND)),
        repetitions=QUICK_REPETITIONS if options.quick else REPETITIONS,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="harvester-bench-") as name:
        folder = Path(name)
        (folder / "path").mkdir()
        path = jobpath.measure(folder / "path", *(QUICK_ROWS if options.quick else ROWS), options.seed)
        (folder / "real").mkdir()
        real = realpath.measure(folder / "real", plan)
    goals = _goals(path, real["ratios"]["harvester_to_run_batch"])
    first = {name: real.pop(name) for name in ("model", "systems", "ratios")}
    return {"goals": goals, **first, "real": real, "path": path}


def _goals(path: dict[str, Any], ratio: float) -> dict[str, dict[str, Any]]:
    """Each goal with what was measured and whether that meets it."""
    whole, killed = path["whole"], path["killed"]
    return {
        "submit_s_below_3": {"measured": whole["submit_s"], "met": whole["submit_s"] < 3.0},
        "rows_per_s_above_5000": {"measured": whole["rows_per_s"], "met": whole["rows_per_s"] > 5000.0},
        "memory_within_1.2_of_the_small_job": {"measured": path["memory_ratio"], "met": path["memory_ratio"] <= 1.2},
        "exactly_once_after_kill": {"measured": killed["oracle"], "met": killed["oracle"]["exactly_once"]},
        "tokens_per_s_at_least_0.97_of_run_batch": {"measured": ratio, "met": ratio >= 0.97},
    }
