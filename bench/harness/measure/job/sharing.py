"""How evenly jobs that run at once are served, from the rows of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from harvester.errors import EngineError

Served = Sequence[tuple[float, int]]  # of one job, in order: when a row ended (seconds), its prompt and output tokens


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has all (Jain, Chiu, Hawe, DEC-TR-301, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def rows_served(results: Path) -> Served:
    columns = ds.dataset(results, format="parquet").to_table(columns=["completed_at", "prompt_tokens", "output_tokens"])
    at_us = pc.cast(columns["completed_at"], "int64").to_pylist()
    tokens = pc.add(columns["prompt_tokens"], columns["output_tokens"]).to_pylist()
    return sorted(zip((at / 1e6 for at in at_us), tokens, strict=True))


def sharing(jobs: Mapping[str, Served]) -> dict[str, Any]:
    """Jain's index over what jobs of equal weight were served while all were active.

    That is from the first row of the job that began last to the last row of the job that ended first. Raises `EngineError` if there is no
    such time.
    """
    start_s, end_s = max(rows[0][0] for rows in jobs.values()), min(rows[-1][0] for rows in jobs.values())
    if start_s >= end_s:
        raise EngineError("the jobs were not all active at once; give them more rows")
    within = [[tokens for at_s, tokens in rows if start_s <= at_s < end_s] for rows in jobs.values()]
    rows, tokens = [len(one) for one in within], [sum(one) for one in within]
    return {
        "jobs": len(jobs),
        "rows_total": {"least": min(map(len, jobs.values())), "most": max(map(len, jobs.values()))},
        "all_active_s": round(end_s - start_s, 2),
        "rows_in_it": {"least": min(rows), "most": max(rows)},
        "jain_rows": round(jain(rows), 5),
        "jain_tokens": round(jain(tokens), 5),
    }
