"""`harvester submit --dry-run`: what a job would be, without a server and without making it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from connectors import open_source
from connectors.base import Source
from harvester.config import HarvestConfig
from jobs.plan import columns_needed, plan_job
from jobs.prompt import build_messages
from jobs.spec import JobRequest, JobSpec

SAMPLE_GROUPS = 4  # row groups, spread over the source
SAMPLE_ROWS = 250  # of each, from its start: reading further in would cost a scan
CHARS_PER_TOKEN = 4  # of English text with common tokenizers


def estimate(request: JobRequest, model: str, tokens_per_s: float | None) -> dict[str, Any]:
    """Counts of the job, with tokens estimated from a sample of rows; ``seconds`` is None where no rate is known.

    Raises what planning the job raises: `SourceError`, `ColumnError`, `TaskError`.
    """
    with tempfile.TemporaryDirectory(prefix="harvester-plan-") as scratch:
        spec = request.source
        with open_source(spec.uri, table=spec.table, query=spec.query, snapshot_dir=Path(scratch)) as source:
            plan = plan_job(request, source, model=model, harvest=HarvestConfig(), now_s=time.time(), token="0000")
            sizes = _prompt_chars(source, plan.spec)
    rows = plan.spec.rows_total
    prompt_tokens = round(sum(sizes) / max(len(sizes), 1) / CHARS_PER_TOKEN * rows)
    most_output = rows * plan.spec.task.max_tokens
    return {
        "rows": rows,
        "slices": len(plan.slices),
        "task": plan.spec.task.name,
        "column": plan.spec.column,
        "estimated_prompt_tokens": prompt_tokens,
        "most_output_tokens": most_output,
        "sampled_rows": len(sizes),
        "tokens_per_s": tokens_per_s,
        "estimated_s": round((prompt_tokens + most_output) / tokens_per_s, 1) if tokens_per_s else None,
        "notes": list(plan.notes),
    }


def _prompt_chars(source: Source, spec: JobSpec) -> list[int]:
    """Characters of the messages of a sample of rows. Rows that are not UTF-8 are left out: they end as errors, not as prompts."""
    groups = [group for group in source.row_groups() if group.row_count]
    sizes: list[int] = []
    for group in groups[:: max(1, len(groups) // SAMPLE_GROUPS)][:SAMPLE_GROUPS]:
        table = source.read(group, 0, min(SAMPLE_ROWS, group.row_count), columns_needed(spec.model_copy(update={"keep": ()})))
        try:
            rows = table.to_pylist()
        except UnicodeDecodeError:
            continue
        sizes += [sum(len(message["content"]) for message in build_messages(spec.task, spec.column, row)) for row in rows]
    return sizes
