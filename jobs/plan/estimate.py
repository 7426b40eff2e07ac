"""A dry run: rows, tokens, time and price of a job, without making it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from jobs.longtext.combine import combining
from jobs.longtext.fit import HEAD_CHARS_PER_TOKEN
from jobs.plan.asked import Asked, Bounds, SampledRow, asked
from jobs.plan.columns import columns_needed
from jobs.plan.job import plan_job
from jobs.spec import JobRequest, JobSpec, OnLong
from jobs.tasks.abilities import UNKNOWN, Abilities
from jobs.tasks.template import build_messages, plain_text

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
    A text that is too long for the model counts as it will be asked: its head, in parts, or not at all (`jobs.plan.asked`).
    ``most_output_tokens`` is for answers as long as they may be. ``estimated_s`` takes them to be as long as those of the same task
    before, else as long as they may be.
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
            sample = _sample(source, plan.spec, known.able.context_tokens)
    rows_total = plan.spec.rows_total
    lengths = known.lengths(plan.spec)
    spread = lengths.spread() if lengths else None
    per_char, counted = _tokens_per_char(sample, known)
    limits = _bounds(plan.spec, known.able, None if spread is None else spread[0])
    found = [asked(row, per_char, limits) for row in sample]
    requests = _mean([row.requests for row in found]) * rows_total if found else rows_total
    prompt_tokens = round(_mean([row.prompt_tokens for row in found]) * rows_total)
    max_output = round(requests * plan.spec.task.most_tokens)
    output = None if spread is None else min(round(spread[0] * requests), max_output)
    left = Left(prompt_tokens + (max_output if output is None else output), 0.0 if spread is None else spread[1] * requests**0.5)
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
        "sampled_rows": len(sample),
        "counted_rows": counted,
        "tokens_per_s": round(sum(span.tokens for span in known.spans) / seconds, 1) if seconds else None,
        "estimated_s": round(expected.seconds, 1) if expected else None,
        "estimated_low_s": round(expected.low_s, 1) if expected else None,
        "estimated_high_s": round(expected.high_s, 1) if expected else None,
        "price": _price(known.price, prompt_tokens, max_output if output is None else output),
        "notes": [*plan.notes, *_long_notes(found, plan.spec, known.able), *([IMAGES_NOTE] if plan.spec.task.images else [])],
    }


def _price(price: PriceConfig | None, prompt_tokens: int, output_tokens: int) -> dict[str, Any] | None:
    if price is None:
        return None
    amount = (prompt_tokens * price.prompt_per_million + output_tokens * price.output_per_million) / 1e6
    return {"amount": round(amount, 4), "currency": price.currency}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _tokens_per_char(sample: Sequence[SampledRow], known: Known) -> tuple[float, int]:
    """Of a prompt, and the number of rows that the tokenizer counted to get it."""
    chars = tokens = counted = 0
    for i in range(0, len(sample), max(1, len(sample) // COUNTED_ROWS)):
        count = known.count(sample[i].messages)
        if count is None:
            break
        chars, tokens, counted = chars + _chars(sample[i].messages), tokens + count, counted + 1
    return tokens / chars if counted and chars else 1 / CHARS_PER_TOKEN, counted


def _bounds(job: JobSpec, able: Abilities, answer_tokens: float | None) -> Bounds:
    """``answer_tokens``: mean of the same task before; None where nothing is known."""
    budget = None if able.context_tokens is None else able.context_tokens - job.task.most_tokens
    return Bounds(budget, job.on_long, job.task.max_tokens if answer_tokens is None else min(answer_tokens, job.task.max_tokens))


def _long_notes(found: Sequence[Asked], job: JobSpec, able: Abilities) -> list[str]:
    """What becomes of rows that are too long, if there are some in the sample."""
    refused = sum(row.requests == 0 for row in found)
    others = sum(row.is_long for row in found) - refused
    if not refused + others:
        return []
    fate = "read in parts" if job.on_long is OnLong.SPLIT else "cut to fit"
    told = ", ".join(f"{count:,} {what}" for count, what in ((others, fate), (refused, "refused")) if count)
    many = f"{refused + others:,} of {len(found):,} sampled rows"
    return [f"Too long for the {able.context_tokens:,} tokens of {job.model}: {many} ({told})."]


def _sample(source: Source, spec: JobSpec, context_tokens: int | None) -> list[SampledRow]:
    """Prompts of a sample of rows. Rows that are not UTF-8 are left out: they end as errors, not as prompts."""
    groups = [group for group in source.row_groups() if group.row_count]
    spec = spec.model_copy(update={"keep": ()})
    wanted = columns_needed(spec.model_copy(update={"task": spec.task.model_copy(update={"images": ()})})) or columns_needed(spec)
    sample: list[SampledRow] = []
    for group in groups[:: max(1, len(groups) // SAMPLE_GROUPS)][:SAMPLE_GROUPS]:
        table = source.read(group, 0, min(SAMPLE_ROWS, group.row_count), wanted)
        whole = (row for row in rows(table) if not any(isinstance(cell, TextProblem) for cell in row.values()))
        sample += [_sampled(spec, row, context_tokens) for row in whole]
    return sample


def _sampled(spec: JobSpec, row: Mapping[str, Any], context_tokens: int | None) -> SampledRow:
    task, column = spec.task, spec.column
    messages = build_messages(task, column, row)
    chars = _chars(messages)
    if column is None:
        return SampledRow(messages, chars, None)
    bare, text = {**row, column: ""}, plain_text(row[column])
    combine = _chars(build_messages(combining(task, column), column, bare)) if spec.on_long is OnLong.SPLIT else 0
    if context_tokens is not None and len(text) > context_tokens * HEAD_CHARS_PER_TOKEN:  # as a job counts it: never whole
        messages = build_messages(task, column, {**row, column: text[: context_tokens * HEAD_CHARS_PER_TOKEN]})
    return SampledRow(messages, chars, _chars(build_messages(task, column, bare)), combine)


def _chars(messages: tuple[Message, ...]) -> int:
    return sum(len(message["content"]) for message in messages)
