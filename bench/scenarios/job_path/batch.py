"""Scenario ``batch``: what the Batch API costs beside the engine, whether batches share evenly, and how the API answers meanwhile.

A real server in processes of its own (Ray Serve, ledger, its applications, runner); only vLLM is replaced, by a scripted engine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.harness.load.batch_client import BatchClient, write_input
from bench.harness.load.prober import probing
from bench.harness.measure.job.sharing import rows_served, sharing
from bench.harness.measure.memory import MemoryWatch
from bench.harness.options import Options
from bench.harness.servers.server import ServerProcess
from harvester.errors import EngineError

SERVER = ("-m", "bench.harness.servers.scripted_server")
LINES = 50_000
WARM_LINES = 200
UPLOADS = 8  # of the same file, one after the other
JOBS = 20
DELAY_S = 0.05  # of a completion where batches share: an engine at 1,280 rows/s, so that all are checked before the first one ends
LIMIT_S = 600.0
IDLE_S = 8.0
SLOW_MS = 100.0  # an answer of the API should take less
FAIR = 0.99


@dataclass(frozen=True, slots=True)
class Plan:
    """``repetitions`` of the large batch, each on a fresh server; lines of the batches that run at once, from the least to the most."""

    repetitions: int
    shared_lines: tuple[int, int]


QUICK = Plan(1, (1_500, 3_000))
FULL = Plan(3, (3_000, 12_000))


def run(options: Options) -> dict[str, Any]:
    """Raises `EngineError` for a server that does not do its work."""
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="harvester-bench-") as name:
        folder = Path(name)
        alone = [_alone(folder / f"alone-{number}", options.seed + number) for number in range(plan.repetitions)]
        together = _together(folder / "together", plan.shared_lines, options.seed)
    medians = {"upload_s": median(run["upload"]["seconds"] for run in alone), "line_us": median(run["whole"]["line_us"] for run in alone)}
    systems = {"harvester": {"alone": alone, "alone_median": medians, "together": together}}
    return {"goals": _goals(alone, together), "systems": systems, "ratios": {}}


def _paths(client: BatchClient, batch_id: str) -> dict[str, str]:
    """What is asked meanwhile, path by name. The page is asked for where this server has one."""
    paths = {"/api/jobs": "/api/jobs", f"/v1/batches/{batch_id}": "/v1/batches/ID", "/api/server": "/api/server"}
    return paths | ({"/": "/"} if client.has("/") else {})


def _alone(folder: Path, seed: int) -> dict[str, Any]:
    """One large batch on a fresh server, with the API asked while nothing runs, while it is uploaded, and from then to its end."""
    folder.mkdir()
    with ServerProcess(SERVER, folder / "state") as server, BatchClient(server.url) as client:
        model = client.get("/api/server")["model"]
        warm = _warm(client, folder, model)
        source = folder / "input.jsonl"
        write_input(source, model, LINES, seed)
        with MemoryWatch(server) as memory_idle, probing(server.url, _paths(client, warm)) as idle:
            time.sleep(IDLE_S)
        with MemoryWatch(server) as memory:
            with probing(server.url, _paths(client, warm)) as uploading:
                files, upload_s = _timed(lambda: [client.upload(source) for _ in range(UPLOADS)])
            began_s = time.perf_counter()
            batch_id = client.create(files[-1])
            with probing(server.url, _paths(client, batch_id)) as working:
                client.wait(batch_id, LIMIT_S, lambda batch: batch["status"] not in ("validating", "failed"), poll_s=0.02)
                validate_s = time.perf_counter() - began_s
                batch = client.completed(batch_id, LIMIT_S)
                whole_s = time.perf_counter() - began_s
            job = client.get(f"/api/jobs/{batch_id}")
            answers = client.download(batch["output_file_id"], folder / "output.jsonl", LINES)
    run_s = job["ended_at_s"] - job["started_at_s"]
    return {
        "lines": LINES,
        "input_mb": round(source.stat().st_size / 1e6, 2),
        "output_mb": round(answers.size_bytes / 1e6, 2),
        "server_ready_s": round(server.ready_s or 0.0, 1),
        "upload": _rate(upload_s / UPLOADS, source.stat().st_size),
        "validation": _rate(validate_s, source.stat().st_size),
        "run": {"seconds": round(run_s, 3), "lines_per_s": round(LINES / run_s, 1)},
        "whole": {"seconds": round(whole_s, 3), "line_us": round(whole_s / LINES * 1e6, 1)},
        "download": _rate(answers.seconds, answers.size_bytes),
        "exactly_once": answers.exactly_once,
        "memory": {"idle": memory_idle.peaks(), "peak": memory.peaks()},
        "api": {"idle": idle, "uploading": uploading, "working": working},
    }


def _timed(work: Any) -> tuple[Any, float]:
    began_s = time.perf_counter()
    return work(), time.perf_counter() - began_s


def _rate(seconds: float, size_bytes: int) -> dict[str, float]:
    return {
        "seconds": round(seconds, 3),
        "mb_per_s": round(size_bytes / 1e6 / seconds, 2),
        "lines_per_s": round(LINES / seconds, 1),
    }


def _warm(client: BatchClient, folder: Path, model: str) -> str:
    """A small batch brought to its end, so that nothing is done for the first time when it is timed. Its id."""
    path = folder / "warm.jsonl"
    write_input(path, model, WARM_LINES, 0)
    batch_id = client.create(client.upload(path))
    client.completed(batch_id, LIMIT_S)
    return batch_id


def _together(folder: Path, lines: tuple[int, int], seed: int) -> dict[str, Any]:
    """Batches of equal weight and different lengths, created one right after the other; the engine takes a while for each request."""
    folder.mkdir()
    counts = np.linspace(*lines, JOBS).astype(int).tolist()
    np.random.default_rng(seed).shuffle(counts)
    with ServerProcess((*SERVER, "--delay", str(DELAY_S)), folder / "state") as server, BatchClient(server.url) as client:
        model = client.get("/api/server")["model"]
        _warm(client, folder, model)
        files = []
        for number, count in enumerate(counts):
            source = folder / f"input-{number}.jsonl"
            write_input(source, model, count, seed + number)
            files.append(client.upload(source))
        with MemoryWatch(server) as memory:
            ids, create_s = _timed(lambda: [client.create(file_id) for file_id in files])
            with probing(server.url, _paths(client, ids[-1])) as api:
                batches = [client.completed(batch_id, LIMIT_S, poll_s=1.0) for batch_id in ids]
        served = {batch_id: rows_served(Path(client.get(f"/api/jobs/{batch_id}")["results"])) for batch_id in ids}
    if any(batch["request_counts"]["completed"] != count for batch, count in zip(batches, counts, strict=True)):
        raise EngineError(f"batches ended with {[batch['request_counts'] for batch in batches]}")
    return {**sharing(served), "delay_s": DELAY_S, "create_s": round(create_s, 3), "memory": memory.peaks(), "api": api}


def _goals(alone: list[dict[str, Any]], together: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each goal with what was measured and whether that meets it."""
    meanwhile = [run["api"][when] for run in alone for when in ("uploading", "working")] + [together["api"]]
    names = sorted({name for api in meanwhile for name in api["paths"]})
    paths = {name: [api["paths"][name] for api in meanwhile] for name in names}
    slowest = {name: max((one["ms"]["p99"] for one in each if one["requests"]), default=None) for name, each in paths.items()}
    was_asked = None not in slowest.values()
    is_fast = all(value is not None and value < SLOW_MS for value in slowest.values())
    failed = sum(path["failed"] for api in meanwhile for path in api["paths"].values())
    right = all(run["exactly_once"] for run in alone)
    fair = min(together["jain_rows"], together["jain_tokens"])
    return {
        "exactly_once": {"measured": right, "met": right},
        "jain_at_least_0.99": {"measured": fair, "met": fair >= FAIR},
        "api_p99_ms_below_100": {"measured": slowest, "met": is_fast},
        "no_request_of_the_api_failed": {"measured": failed, "met": was_asked and failed == 0},
    }
