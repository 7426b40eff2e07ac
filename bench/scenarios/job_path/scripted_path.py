"""The job path without a model: submission, feeding, ledger, parts, memory, and a kill in the middle.

A real server in processes of its own (Ray Serve, ledger, jobs app, runner); only vLLM is replaced, by an engine that answers at once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.harness.load.table import write_synthetic
from bench.harness.measure.job.job_watch import submit, wait
from bench.harness.measure.job.oracle import check_results, time_count
from bench.harness.measure.memory import MemoryWatch
from bench.harness.servers.server import ServerProcess
from harvester.cli.client import Client
from harvester.errors import EngineError
from jobs.spec import JobView
from jobs.states import ENDED

SERVER = ("-m", "bench.harness.servers.scripted_server")
SECONDS_PER_ROW = 2e-3  # ten times what is hoped for: beyond, a run is given up


def measure(folder: Path, rows_small: int, rows: int, seed: int) -> dict[str, Any]:
    """Three servers one after the other: a small job, the job, and the job killed half way. Files go into ``folder``."""
    tables = {count: folder / f"rows-{count}.parquet" for count in (rows_small, rows)}
    for count, path in tables.items():
        write_synthetic(path, count, seed)
    small = _whole(folder / "small", tables[rows_small], rows_small)
    whole = _whole(folder / "whole", tables[rows], rows)
    return {
        "small": small,
        "whole": whole,
        "memory_ratio": round(whole["memory"]["own_mib"] / small["memory"]["own_mib"], 3),
        "killed": _killed(folder / "killed", tables[rows], rows),
    }


def _limit_s(rows: int) -> float:
    return 60.0 + rows * SECONDS_PER_ROW


def _whole(state: Path, source: Path, rows: int) -> dict[str, Any]:
    """One job from submission to end, on a fresh server."""
    with ServerProcess(SERVER, state) as server, Client(server.url) as client:
        with MemoryWatch(server) as memory:
            view, submit_s = submit(client, source)
            view = wait(client, view.id, _limit_s(rows))
        sql = time_count(state, rows, server.url)
    return {
        "rows": rows,
        "table_mib": round(source.stat().st_size / 2**20, 1),
        "server_ready_s": round(server.ready_s or 0.0, 1),
        "submit_s": round(submit_s, 3),
        **_pace(view),
        "memory": memory.peaks(),
        "sql": sql,
        "oracle": check_results(Path(view.results), rows),
    }


def _pace(view: JobView) -> dict[str, Any]:
    """From the first lease to the last part, by the ledger's clock."""
    assert view.started_at_s is not None
    assert view.ended_at_s is not None
    seconds = view.ended_at_s - view.started_at_s
    return {
        "job_s": round(seconds, 3),
        "rows_per_s": round(view.rows_total / seconds, 1),
        "row_us": round(seconds / view.rows_total * 1e6, 1),
        "rows_recomputed": view.rows_recomputed,
    }


def _killed(state: Path, source: Path, rows: int) -> dict[str, Any]:
    """Kill every process of the server at half of the job, start a new one on the same state, let it finish."""
    with ServerProcess(SERVER, state) as server, Client(server.url) as client:
        job, _ = submit(client, source)
        at = wait(client, job.id, _limit_s(rows), lambda view: view.rows_ok >= rows // 2)
        if at.state in ENDED:
            raise EngineError("the job ended before the server could be killed; give it more rows")
        processes = server.kill()
    results = Path(job.results)
    before = _parts(results)
    began_s, began_at_s = time.monotonic(), time.time()
    with ServerProcess(SERVER, state) as server, Client(server.url) as client:
        view = wait(client, job.id, _limit_s(rows))
        done_s = time.monotonic() - began_s
    new = _parts(results) - before
    return {
        "rows": rows,
        "rows_at_kill": at.rows_ok,
        "parts_at_kill": len(before),
        "processes_killed": processes,
        "server_ready_s": round(server.ready_s or 0.0, 1),
        "first_part_s": round(min(path.stat().st_mtime for path in new) - began_at_s, 2),
        "done_s": round(done_s, 1),
        "rows_recomputed": view.rows_recomputed,
        "oracle": check_results(results, rows),
    }


def _parts(results: Path) -> set[Path]:
    return set(results.glob("part-*.parquet"))
