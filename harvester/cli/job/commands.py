"""`harvester submit`: make a job of a table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import typer

from connectors.targets.target import TargetName
from harvester.cli.client import Client
from harvester.cli.invocation import Invocation, command
from harvester.cli.job.deadline import parse_deadline
from harvester.cli.job.into import checked_target, copying, written_line
from harvester.cli.job.progress import failure, follow, show, updates
from harvester.cli.job.results import checked_file, ending, written
from harvester.cli.job.submit import options
from harvester.cli.job.submit.dryrun import print_estimate
from harvester.cli.job.submit.sending import brought
from harvester.cli.job.submit.stdin import Given, check_text_form, given_source
from harvester.cli.job.text import job_lines
from harvester.cli.job.wired import is_elsewhere
from harvester.cli.request import build_request, read_schema, read_template_kwargs, read_thinking, task_options
from harvester.cli.server.local import serving
from harvester.cli.slow import said_if_slow
from harvester.cli.table import visible
from harvester.errors import HarvesterError
from jobs.spec import JobRequest, JobView, OnLong
from jobs.states import ENDED

app = typer.Typer()


@command(app)
def submit(
    here: Invocation,
    source: options.Source,
    task: options.Task = None,
    labels: options.Labels = None,
    schema: options.Schema = None,
    to: options.To = None,
    prompt: options.Prompt = None,
    option: options.TaskOptions = None,
    column: options.Column = None,
    image: options.Image = None,
    adapter: options.Adapter = None,
    keep: options.Keep = None,
    id_column: options.IdColumn = None,
    table: options.Table = None,
    query: options.Query = None,
    where: options.Where = None,
    sample: options.Sample = None,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    encoding: options.Encoding = None,
    ragged: options.Ragged = False,
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    thinking: options.Thinking = None,
    chat_template_kwargs: options.TemplateKwargs = None,
    input_format: options.InputFormat = None,
    into: options.Into = None,
    on_long: options.LongTexts = OnLong.TRUNCATE,
    max_error_rate: options.MaxErrorRate = 0.5,
    weight: options.Weight = 1.0,
    deadline: options.Deadline = None,
    new: options.New = False,
    watch: options.Watch = False,
    dry_run: options.DryRun = False,
) -> None:
    """Make a job of a table.

    Each row becomes one prompt, answered in the time that chat leaves idle.

    Submitting the same job again finds the existing one. If no server answers, one is started for this job and stopped afterwards.

    \b
    Example:
        harvester submit docs.parquet --task summarize --watch
        harvester submit docs.parquet --where "lang = 'en'" --limit 10 --watch
        harvester submit reviews.parquet --labels positive,negative --column text
        harvester submit shop.duckdb --query "select * from reviews" --prompt "Is this about price? {text}"
        harvester submit docs.parquet --task ./tone.yaml --option tone=calm
        harvester submit photos.csv --image file --prompt "What is in this picture?"
        harvester submit "docs/*.md" --into summaries.duckdb:docs
        cat mails.jsonl | harvester submit - --column body -o mails.csv
    """
    target = None if into is None else checked_target(into, here)
    due = None if deadline is None else parse_deadline(deadline, time.time())
    asks = {"labels": labels.split(",") if labels else None, "schema": read_schema(schema), "to": to, "prompt": prompt}
    chosen = {"where": where, "sample": sample, "seed": seed, "limit": limit, "encoding": encoding, "ragged": ragged}
    reads: dict[str, Any] = {"table": table, "query": query, "chosen": chosen, "column": column, "keep": keep, "id_column": id_column}
    reads["images"] = tuple(image or ())
    limits: dict[str, Any] = {"on_long": on_long, "max_error_rate": max_error_rate, "weight": weight, "deadline_at_s": due, "new": new}
    sampled: dict[str, Any] = {"model": model, "adapter": adapter, "max_tokens": max_tokens, "temperature": temperature}
    sampled |= {"thinking": read_thinking(thinking), "chat_template_kwargs": read_template_kwargs(chat_template_kwargs)}
    check_text_form(source, encoding, ragged)
    with given_source(here, source, input_format, for_a_job=not dry_run) as given:
        request = build_request(given.uri, task=task, options=task_options(asks, option or ()), **reads, **limits, **sampled)
        if dry_run:
            with said_if_slow(f"Reading {given.uri}"):
                print_estimate(here, request)
        else:
            _submit(here, request, watch, target, given)


def _submit(here: Invocation, request: JobRequest, watch: bool, target: TargetName | None, given: Given) -> None:
    copied: dict[str, object] = {}
    with serving(here, request.model, _say) as (client, is_embedded):
        file = None
        if not is_embedded:
            file = checked_file(str(target)) if target is not None and is_elsewhere(client) else None
            request = brought(client, request, _say)
        with said_if_slow(f"Reading {request.source.uri}"):
            view, created = client.submit(request)
        given.in_use = True
        follows = watch or is_embedded or target is not None
        if here.json and not follows:
            here.print_json(_as_json(view, created))
            return
        if not here.json:
            _print_submitted(view, created)
        if not follows:
            _print_next(view)
            return
        view, copied = _follow(client, view, is_embedded, None if file is not None else target)
        if file is not None:
            copied = written(here, view.id, file)
    if here.json:
        here.print_json(_as_json(view, created) | copied)
    else:
        print(*job_lines(view), sep="\n")
        for line in ending(here, view.id):
            print(line)
        if copied:
            print(written_line(copied))
        _print_next(view)
    fault = failure(view)
    if fault:
        raise HarvesterError(fault)


def _follow(client: Client, view: JobView, is_embedded: bool, target: TargetName | None) -> tuple[JobView, dict[str, object]]:
    """Follow the job; return its last view, and what was written to the target, if any."""
    try:
        if target is None:
            return follow(client, view.id), {}
        with copying(target, Path(client.server().state), view.id) as copy:
            (ended,) = show(copy.follow(updates(client, [view.id]))).values()
            return ended, copy.to_json()
    except KeyboardInterrupt:
        _say(
            f"Job {view.id} is kept; the same command takes it up again"
            if is_embedded
            else f"Job {view.id} goes on; see it with: harvester watch {view.id}"
        )
        raise


def _as_json(view: JobView, created: bool) -> dict[str, Any]:
    return {**view.model_dump(mode="json"), "created": created}


def _print_submitted(view: JobView, created: bool) -> None:
    if created:
        print(visible(f"Job {view.id}: {view.task} over {view.rows_total:,} rows of {view.source}, with {view.model}"))
    else:
        print(f"Job {view.id} already exists for this request and is {view.state}; --new makes another")
    for note in view.notes:
        print(f"Note: {visible(note)}")


def _print_next(view: JobView) -> None:
    print("Next:")
    if view.state not in ENDED:
        print(f"  harvester watch {view.id}")
    print(f"  harvester results {view.id} -o {view.id}.parquet")
    print(f"""  harvester sql "select * from results('{view.id}') limit 5\"""", flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
