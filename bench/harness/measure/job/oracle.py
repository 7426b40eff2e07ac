"""Whether a job's results are right: every input row in them exactly once, with its own answer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

from harvester.errors import HarvesterError
from jobs.sql.query import connect

_FACTS = """
    SELECT count(*), count(DISTINCT row_id), min(row_id), max(row_id), count(*) FILTER (status = 'ok'),
        count(*) FILTER (output IS DISTINCT FROM 'row-' || row_id), count(*) FILTER (id IS DISTINCT FROM row_id)
    FROM read_parquet($1)
"""


def check_results(results: Path, rows: int) -> dict[str, Any]:
    """Counts over the parts of a job on `bench.harness.load.table.write_synthetic`, read by DuckDB alone.

    ``exactly_once``: the row_ids are 0 .. ``rows`` - 1, each once, all ok, each with its own answer and input.
    """
    with duckdb.connect() as connection:
        (found,) = connection.execute(_FACTS, [str(results / "part-*.parquet")]).fetchall()
    total, distinct, least, most, ok, wrong_answers, wrong_inputs = found
    right = (total, distinct, least, most, ok, wrong_answers, wrong_inputs) == (rows, rows, 0, rows - 1, rows, 0, 0)
    return {
        "exactly_once": right,
        "rows": total,
        "distinct_row_ids": distinct,
        "rows_ok": ok,
        "wrong_answers": wrong_answers,
        "wrong_inputs": wrong_inputs,
    }


def time_count(state: Path, rows: int, url: str) -> dict[str, float]:
    """Seconds of counting and summing over the results in SQL: within a process, and as ``harvester sql`` with its own start."""
    query = "select count(*), sum(output_tokens) from results('latest') where status = 'ok'"
    with connect(state) as connection:
        began_s = time.perf_counter()
        ((count, _),) = connection.sql(query).fetchall()
        within_s = time.perf_counter() - began_s
    if count != rows:
        raise HarvesterError(f"SQL counts {count} results that are ok, not {rows}")
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "harvester", "sql", query, "--format", "csv", "--state", str(state), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    command_s = time.perf_counter() - began_s
    if done.returncode != 0 or not done.stdout.splitlines()[-1].startswith(f"{rows},"):
        raise HarvesterError(f"harvester sql did not count {rows} rows: {(done.stderr or done.stdout).strip()[:300]}")
    return {"query_s": round(within_s, 3), "command_s": round(command_s, 3)}
