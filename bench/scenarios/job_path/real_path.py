"""The job path with a model: tokens per second of a job on an idle server, against vLLM's own ``run-batch`` on the same rows.

Every run has a fresh engine, so that no run finds another's prompts in the prefix cache. The two take turns, also at going first: a shared
machine changes its speed from minute to minute, so that only adjacent runs compare, and only the median of several says much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pyarrow.parquet as pq
import yaml

from bench.harness.device import on_cpu
from bench.harness.load.table import write_speeches
from bench.harness.measure.job.finished import Finished, engine_steps, pooled, share_equal
from bench.harness.measure.job.job_watch import submit, wait
from bench.harness.servers import run_batch as runbatch
from bench.harness.servers.server import ServerProcess
from harvester.cli.client import Client
from harvester.engine.launch.defaults import embedded_defaults
from harvester.errors import EngineError

CHARS = (1500, 3400)  # of a row's text: 400 to 900 tokens of the embedded model
MAX_TOKENS = 96
ENGINE: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "enable_prefix_caching": True}
ON_CPU: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.2}


@dataclass(frozen=True, slots=True)
class Plan:
    """``model``: folder, or None for the embedded one. ``rows`` of the table; how often each system runs."""

    model: str | None
    rows: int
    repetitions: int
    seed: int


def measure(folder: Path, plan: Plan) -> dict[str, Any]:
    """Run both systems ``repetitions`` times."""
    model, engine = _model(plan.model)
    table, requests = folder / "speeches.parquet", folder / "requests.jsonl"
    write_speeches(table, plan.rows, plan.seed, CHARS)
    runbatch.write_requests(table, requests, model.name, MAX_TOKENS)
    systems: dict[str, Callable[[Path], Finished]] = {
        "run_batch": lambda place: runbatch.run(place, requests, {"model": str(model), "served_model_name": [model.name], **engine})
    }
    systems["harvester"] = lambda place: _harvest(place, table, {"model": str(model), "engine": engine})
    runs: dict[str, list[Finished]] = {name: [] for name in systems}
    for repetition in range(plan.repetitions):
        for name in systems if repetition % 2 == 0 else reversed(systems):
            runs[name].append(systems[name](folder / f"{name}-{repetition}"))
    return {"model": plan.model or "embedded", "rows": plan.rows, "max_tokens": MAX_TOKENS, "engine": engine, **_report(runs)}


def _model(given: str | None) -> tuple[Path, dict[str, Any]]:
    """The model's folder and the engine arguments of every system."""
    cpu = on_cpu()
    engine = ENGINE | (ON_CPU if cpu else {})
    if given is not None:
        return Path(given).absolute(), engine
    from harvester.engine.embedded import embedded_model

    return embedded_model(), engine | embedded_defaults(cpu=cpu)


def _harvest(folder: Path, table: Path, values: dict[str, Any]) -> Finished:
    """One job on a fresh server; its time is the ledger's, from the first lease to the last part."""
    folder.mkdir()
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    began_s = time.monotonic()
    with ServerProcess(("-m", "harvester", "serve", "--config", str(config)), folder / "state") as server, Client(server.url) as client:
        job, _ = submit(client, table, max_tokens=MAX_TOKENS)
        view = wait(client, job.id, runbatch.LIMIT_S, poll_s=2.0)
        steps = engine_steps(httpx.get(f"{server.url}/metrics", trust_env=False).text)
    whole_s = time.monotonic() - began_s
    if view.rows_error:
        raise EngineError(f"{view.rows_error} of {view.rows_total} rows ended as errors")
    assert view.started_at_s is not None
    assert view.ended_at_s is not None
    columns = pq.ParquetDataset(view.results).read(columns=["row_id", "output"]).to_pydict()
    answers = dict(zip(columns["row_id"], columns["output"], strict=True))
    seconds = view.ended_at_s - view.started_at_s
    return Finished("harvester", seconds, whole_s - seconds, view.prompt_tokens, view.output_tokens, steps, answers)


def _report(runs: dict[str, list[Finished]]) -> dict[str, Any]:
    stock = runs["run_batch"]
    systems = {
        name: {
            "offline_tokens_per_s": round(pooled(found), 1),
            "prompt_tokens": found[0].prompt_tokens,
            "output_tokens": found[0].output_tokens,
            "answers_equal_to_run_batch": round(share_equal(stock[0], found[-1]), 4),
            "runs": [run.line() for run in found],
        }
        for name, found in runs.items()
    }
    pairs = [round(pooled([ours]) / pooled([theirs]), 4) for ours, theirs in zip(runs["harvester"], stock, strict=True)]
    return {"systems": systems, "ratios": {"harvester_to_run_batch": round(median(pairs), 4)}, "pairs": pairs}
