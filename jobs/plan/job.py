"""Plans: a request checked against its source, its columns chosen, its rows cut into slices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import ceil

import pyarrow as pa

from connectors.base import RowGroup, Source
from connectors.errors import ColumnError, SourceError, UsageError
from connectors.paths.rules import SourceRules
from jobs.config import HarvestConfig
from jobs.errors import TaskError
from jobs.plan.columns import check_column, check_image_column, holds_bytes, pick_column
from jobs.plan.unique import check_unique
from jobs.result import kept_names
from jobs.spec import JobPlan, JobRequest, JobSpec, OnLong, SliceSpec
from jobs.tasks.abilities import UNKNOWN, Abilities, check_adapter, check_images
from jobs.tasks.embedding import check_model
from jobs.tasks.load import resolve_task
from jobs.tasks.spec import AnswerKind, Task
from jobs.tasks.thinking import settled, thinking_note

IMAGE_SLICE_ROWS = 32  # of a source that holds images: a slice's rows are in memory
MAX_SLICES = 500_000  # with 256 rows each: 128 million rows


def check_deadline(deadline_at_s: float | None, now_s: float) -> None:
    """Raises `UsageError` for one that has passed: the job would expire at once."""
    if deadline_at_s is not None and deadline_at_s <= now_s:
        raise UsageError(f"deadline_at_s {deadline_at_s!r} has passed: in Unix time it is {now_s:.0f} now; give a later one, or none")


def plan_job(
    request: JobRequest,
    source: Source,
    *,
    model: str,
    harvest: HarvestConfig,
    now_s: float,
    token: str,
    rules: SourceRules | None = None,
    owner: str | None = None,
    able: Abilities = UNKNOWN,
) -> JobPlan:
    """Plan a job. Reads metadata of the source only, and the values of ``id_column`` where one is given.

    ``model``: the one that runs the job; ``token``: four hex digits for the job's id; ``rules``: access rules that ``source`` was opened
    with; ``owner``: who asks; ``able``: abilities of the model.
    Raises `TaskError`, `ColumnError`, `SourceError`.
    """
    asked = _asked(request)
    check_model(asked, model, able.gives)
    check_images(asked, model, able.max_images)
    check_adapter(asked, model, able.adapters)
    task = settled(asked, model, able.thinking, able.context_tokens)
    if source.row_count == 0:
        raise SourceError(f"source {request.source.uri} has no rows; submit one with at least one row")
    if asked.answer is AnswerKind.EMBEDDING and request.on_long is OnLong.SPLIT:
        raise TaskError("--on-long split combines answers, and embeddings cannot be combined; use truncate or error")
    column, choice = pick_column(source.schema, task, request.column)
    pictures = _pictures(source.schema, task, request.on_long)
    if column is None and request.on_long is OnLong.SPLIT:
        raise ColumnError("--on-long split cuts the text column, and the prompt names several; say which one with --column")
    keep = _keep(source.schema, request.keep, pictures)
    if request.id_column is not None:
        check_column(source.schema, request.id_column, "--id-column")
        check_unique(source, request.id_column)
    fingerprint = source.fingerprint()
    spec = JobSpec(
        id=f"{source.name}-{token}",
        key=_key(request, fingerprint, task, column, keep, model),
        source=request.source,
        fingerprint=fingerprint,
        rules=rules,
        task=task,
        column=column,
        keep=keep,
        model=model,
        rows_total=source.row_count,
        created_at_s=now_s,
        owner=owner,
        on_long=request.on_long,
        max_error_rate=request.max_error_rate,
        weight=request.weight,
        deadline_at_s=request.deadline_at_s,
    )
    left_out = [f"Image column {name} is not copied into the results; --keep copies it." for name in pictures if name not in keep]
    notes = (*filter(None, (choice, thinking_note(task, model, asked))), *left_out, *_renamed(source.schema, keep, task))
    harvest = _in_small_slices(harvest) if pictures else harvest
    return JobPlan(spec=spec, slices=cut_slices(source.row_groups(), source.row_count, harvest), notes=notes)


def _asked(request: JobRequest) -> Task:
    return resolve_task(
        request.task,
        inline=request.task_inline,
        options=request.options,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        thinking=request.thinking,
        chat_template_kwargs=request.chat_template_kwargs,
        images=request.images,
        adapter=request.adapter,
    )


def _pictures(schema: pa.Schema, task: Task, on_long: OnLong) -> tuple[str, ...]:
    """Image columns that hold the images themselves. Raises `ColumnError` for invalid image columns, `TaskError` for images to split."""
    if task.images and on_long is OnLong.SPLIT:
        raise TaskError("--on-long split asks for parts of a text, and an image has none; use truncate or error")
    for name in task.images:
        check_image_column(schema, name)
    return tuple(name for name in task.images if holds_bytes(schema.field(name).type))


def _in_small_slices(harvest: HarvestConfig) -> HarvestConfig:
    most = min(harvest.max_slice_rows, IMAGE_SLICE_ROWS)
    return harvest.model_copy(update={"max_slice_rows": most, "min_slice_rows": min(harvest.min_slice_rows, most)})


def cut_slices(groups: Sequence[RowGroup], rows_total: int, harvest: HarvestConfig) -> tuple[SliceSpec, ...]:
    """Cut the rows into slices, in row order and none across row groups; slices of one group differ by one row at most.

    A slice aims at ``rows_total / slices_per_job`` rows, within ``min_slice_rows`` and ``max_slice_rows``. A row group smaller than that
    is a slice of its own. Raises `SourceError` for more than `MAX_SLICES` slices.
    """
    max_rows = min(max(rows_total // harvest.slices_per_job, harvest.min_slice_rows), harvest.max_slice_rows)
    slices: list[SliceSpec] = []
    wanted = sum(ceil(group.row_count / max_rows) for group in groups)
    if wanted > MAX_SLICES:
        raise SourceError(
            f"the source has {rows_total:,} rows in {len(groups):,} row groups, which would be {wanted:,} slices; "
            f"the limit is {MAX_SLICES:,}: submit it in parts, or raise harvest.max_slice_rows"
        )
    for group in groups:
        parts = ceil(group.row_count / max_rows)
        bounds = [group.row_count * part // parts for part in range(parts + 1)] if parts else []
        for offset, end in pairwise(bounds):
            slices.append(
                SliceSpec(
                    slice_id=len(slices),
                    group_index=group.index,
                    offset=offset,
                    row_start=group.row_start + offset,
                    row_count=end - offset,
                )
            )
    return tuple(slices)


def _keep(schema: pa.Schema, asked: tuple[str, ...] | None, pictures: Collection[str]) -> tuple[str, ...]:
    if asked is None:
        return tuple(name for name in schema.names if name not in pictures)
    for name in asked:
        check_column(schema, name, "--keep")
    return tuple(dict.fromkeys(asked))


def _renamed(schema: pa.Schema, keep: Sequence[str], task: Task) -> list[str]:
    names = kept_names(schema, keep, task)
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower(), []).append(name)
    notes = []
    for name, kept in names.items():
        if kept == name:
            continue
        twin = next((other for other in spellings[name.lower()] if other != name), None)
        why = f"the results have a column {name.lower()} of their own" if twin is None else f"SQL would take it for column {twin}"
        notes.append(f"Input column {name} is kept as {kept}, because {why}.")
    return notes


def _key(request: JobRequest, fingerprint: str, task: Task, column: str | None, keep: Sequence[str], model: str) -> str:
    """A hash, equal for two requests that would compute the same. JSON keys stay unsorted: a schema's properties order the columns."""
    source = request.source
    told = [
        [source.uri, source.table, source.query],
        fingerprint,
        task.key_fields(),
        column,
        list(keep),
        request.id_column,
        model,
        request.on_long,
    ]
    return hashlib.sha256(json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()
