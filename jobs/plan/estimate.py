"""A dry run: rows, tokens, time and price of a job, without making it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.base import Source
from connectors.open import open_source
from connectors.paths.rules import SourceRules
from connectors.text import TextProblem, rows
from jobs.config import HarvestConfig, PriceConfig
from jobs.engine import Message
from jobs.forecast.finish import Left, Span, finish
from jobs.forecast.lengths import Lengths
from jobs.plan.columns import columns_needed
from jobs.plan.job import plan_job
from jobs.spec import JobRequest, JobSpec
from jobs.tasks.abilities import UNKNOWN, Abilities
from jobs.tasks.template import build_messages

SAMPLE_GROUPS = 4  # row groups, spread over the source
SAMPLE_ROWS = 250  # of each, from its start: reading further in would cost a scan
COUNTED_ROWS = 24  # of the sample, counted by the server's tokenizer
IMAGES_NOTE = "Prompt tokens are those of the text; images come on top."
CHARS_PER_TOKEN = 4  # of English text with common tokenizers


@dataclass(frozen=True, slots=True)
class Known:
    """Inputs of an estimate, from a server or its state folder. ``count`` gives the tokens of a prompt; None if unknown."""

    model: str = "unknown"
    spans: Sequence[Span] = ()  # of harvest in the last days
    lengths: Callable[[JobSpec], Lengths | None] = lambda job: None
    price: PriceConfig | None = None
    able: Abilities = UNKNOWN
    count: Callable[[tuple[Message, ...]], int | None] = lambda messages: None


def estimate(request: JobRequest, known: Known, rules: SourceRules | None = None, max_copied_bytes: int | None = None) -> dict[str, Any]:
    """Counts of the job, with tokens estimated from a sample of rows; None for what is not known.

    ``rules``: what may be read; None: all that this process may.
    ``estimated_s`` takes answers to be as long as those of the same task before, else as long as they may be.
    Raises what planning the job raises: `SourceError`, `ColumnError`, `TaskError`.
    """
    with tempfile.TemporaryDirectory(prefix="harvester-plan-") as scratch:
        spec = request.source
        bounds: dict[str, Any] = {"rules": rules, "max_copied_bytes": max_copied_bytes}
        with open_source(spec.uri, **spec.choices(), snapshot_dir=Path(scratch), **bounds) as source:
            plan = plan_job(
                request,
                source,
                model=request.model or known.model,
                harvest=HarvestConfig(),
                now_s=time.time(),
                token="0000",
                able=known.able,
            )
            prompts = _sample(source, plan.spec)
    rows_total = plan.spec.rows_total
    per_row, counted = _tokens(prompts, known)
    prompt_tokens, max_output = round(per_row * rows_total), rows_total * plan.spec.task.most_tokens
    lengths = known.lengths(plan.spec)
    spread = lengths.spread() if lengths else None
    output = None if spread is None else min(round(spread[0] * rows_total), max_output)
    left = Left(prompt_tokens + (max_output if output is None else output), 0.0 if spread is None else spread[1] * rows_total**0.5)
    expected = finish(left, known.spans)
    seconds = sum(span.seconds for span in known.spans)
    return {
        "rows": rows_total,
        "slices": len(plan.slices),
        "task": plan.spec.task.name,
        "column": plan.spec.column,
        "estimated_prompt_tokens": prompt_tokens,
        "estimated_output_tokens": output,
        "most_output_tokens": max_output,
        "sampled_rows": len(prompts),
        "counted_rows": counted,
        "tokens_per_s": round(sum(span.tokens for span in known.spans) / seconds, 1) if seconds else None,
        "estimated_s": round(expected.seconds, 1) if expected else None,
        "estimated_low_s": round(expected.low_s, 1) if expected else None,
        "estimated_high_s": round(expected.high_s, 1) if expected else None,
        "price": _price(known.price, prompt_tokens, max_output if output is None else output),
        "notes": [*plan.notes, *([IMAGES_NOTE] if plan.spec.task.images else [])],
    }


def _price(price: PriceConfig | None, prompt_tokens: int, output_tokens: int) -> dict[str, Any] | None:
    if price is None:
        return None
    amount = (prompt_tokens * price.prompt_per_million + output_tokens * price.output_per_million) / 1e6
    return {"amount": round(amount, 4), "currency": price.currency}


def _tokens(prompts: Sequence[tuple[Message, ...]], known: Known) -> tuple[float, int]:
    """Mean prompt tokens of a row, and the number of rows that the tokenizer counted to get the tokens per character."""
    sizes = [sum(len(message["content"]) for message in prompt) for prompt in prompts]
    chars = tokens = counted = 0
    for i in range(0, len(prompts), max(1, len(prompts) // COUNTED_ROWS)):
        count = known.count(prompts[i])
        if count is None:
            break
        chars, tokens, counted = chars + sizes[i], tokens + count, counted + 1
    per_char = tokens / chars if counted and chars else 1 / CHARS_PER_TOKEN
    return sum(sizes) / max(len(sizes), 1) * per_char, counted


def _sample(source: Source, spec: JobSpec) -> list[tuple[Message, ...]]:
    """Prompts of a sample of rows. Rows that are not UTF-8 are left out: they end as errors, not as prompts."""
    groups = [group for group in source.row_groups() if group.row_count]
    spec = spec.model_copy(update={"keep": ()})
    wanted = columns_needed(spec.model_copy(update={"task": spec.task.model_copy(update={"images": ()})})) or columns_needed(spec)
    prompts: list[tuple[Message, ...]] = []
    for group in groups[:: max(1, len(groups) // SAMPLE_GROUPS)][:SAMPLE_GROUPS]:
        table = source.read(group, 0, min(SAMPLE_ROWS, group.row_count), wanted)
        whole = (row for row in rows(table) if not any(isinstance(cell, TextProblem) for cell in row.values()))
        prompts += [build_messages(spec.task, spec.column, row) for row in whole]
    return prompts
