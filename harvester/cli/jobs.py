"""`harvester submit`: a table to harvest idle time for."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from connectors import TargetName
from connectors.incoming import Form
from harvester.cli.client import Client
from harvester.cli.completion import task_names
from harvester.cli.deadline import parse_deadline
from harvester.cli.dryrun import print_estimate
from harvester.cli.into import INTO_HELP, checked_target, copying, written_line
from harvester.cli.invocation import Invocation, command
from harvester.cli.jobtext import job_lines
from harvester.cli.local import serving
from harvester.cli.progress import failure, follow, show, updates
from harvester.cli.request import build_request, read_schema
from harvester.cli.stdin import Given, given_source
from harvester.errors import HarvesterError
from jobs.spec import JobRequest, JobView, OnLong
from jobs.states import ENDED

app = typer.Typer()


@command(app)
def submit(
    here: Invocation,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="File, glob or folder, here or at a URI; a database; or - for standard input.", show_default=False
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", "-t", metavar="T", help="Built-in task (harvester tasks) or FILE.yaml; summarize.", autocompletion=task_names
        ),
    ] = None,
    labels: Annotated[str | None, typer.Option("--labels", metavar="A,B", help="Labels to choose from; implies --task classify.")] = None,
    schema: Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="JSON schema to extract; implies --task extract.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="LANG", help="Language to translate into; implies --task translate.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TPL", help="Prompt with {column} places; implies --task ask.")] = None,
    column: Annotated[str | None, typer.Option("--column", metavar="C", help="Text column; picked where one is obvious.")] = None,
    keep: Annotated[str | None, typer.Option("--keep", metavar="A,B", help="Input columns to keep in the results, or none; all.")] = None,
    id_column: Annotated[str | None, typer.Option("--id-column", metavar="C", help="Column whose values must be unique.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="T", help="Table of a database.")] = None,
    query: Annotated[str | None, typer.Option("--query", metavar="SQL", help="Query over a database.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="M", help="Model it must run on; the server's.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Most tokens of an answer; the task's.")
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="X", min=0.0, max=2.0, help="The task's.")] = None,
    input_format: Annotated[
        Form | None, typer.Option("--input-format", help="What standard input is; told by its first bytes.", show_default=False)
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", "-o", metavar="TARGET", help=f"{INTO_HELP} Implies --watch.", show_default=False)
    ] = None,
    on_long: Annotated[OnLong, typer.Option("--on-long", help="A text too long for the model: cut it, ask in parts, or fail its row.")] = (
        OnLong.TRUNCATE
    ),
    max_error_rate: Annotated[
        float,
        typer.Option("--max-error-rate", metavar="X", min=0.0, max=1.0, help="Stop it when after 100 rows more than this share failed."),
    ] = 0.5,
    weight: Annotated[
        float, typer.Option("--weight", metavar="X", min=0.001, max=1000.0, help="Share beside other jobs, as a ratio.")
    ] = 1.0,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="WHEN", help="It should end by then: 6h, 18:30, 2030-01-31T18:30; it expires then.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Make a new job even where the same one exists.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch it to its end; exit with 1 if it failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print rows, tokens and time it would take; make nothing.")] = False,
) -> None:
    """Make a job of a table.

    It asks one prompt a row, while the server has nothing better to do.

    The same request again finds the same job. Where no server answers, one is started for this job and stopped at its end.

    \b
    Example:
        harvester submit docs.parquet --task summarize --watch
        harvester submit reviews.parquet --labels positive,negative --column text
        harvester submit shop.duckdb --query "select * from reviews" --prompt "Is this about price? {text}"
        harvester submit "docs/*.md" --into summaries.duckdb:docs
        cat mails.jsonl | harvester submit - --column body -o mails.csv
    """
    target = None if into is None else checked_target(into, here)
    deadline_at_s = None if deadline is None else parse_deadline(deadline, time.time())
    with given_source(here, source, input_format, for_a_job=not dry_run) as given:
        request = build_request(
            given.uri,
            table=table,
            query=query,
            task=task,
            options={"labels": labels.split(",") if labels else None, "schema": read_schema(schema), "to": to, "prompt": prompt},
            keep=keep,
            column=column,
            id_column=id_column,
            model=model,
            max_tokens=max_tokens,
            temperature=temperature,
            on_long=on_long,
            max_error_rate=max_error_rate,
            weight=weight,
            deadline_at_s=deadline_at_s,
            new=new,
        )
        if dry_run:
            print_estimate(here, request)
        else:
            _submit(here, request, watch, target, given)


def _submit(here: Invocation, request: JobRequest, watch: bool, target: TargetName | None, given: Given) -> None:
    copied: dict[str, object] = {}
    with serving(here, request.model, _say) as (client, is_embedded):
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
        view, copied = _follow(client, view, is_embedded, target)
    if here.json:
        here.print_json(_as_json(view, created) | copied)
    else:
        print(*job_lines(view), sep="\n")
        if copied:
            print(written_line(copied))
        _print_next(view)
    fault = failure(view)
    if fault:
        raise HarvesterError(fault)


def _follow(client: Client, view: JobView, is_embedded: bool, target: TargetName | None) -> tuple[JobView, dict[str, object]]:
    """How the job ended, and what was written where a target was given."""
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
        print(f"Job {view.id}: {view.task} over {view.rows_total:,} rows of {view.source}, with {view.model}")
    else:
        print(f"Job {view.id} is this same job, made before and now {view.state}; --new makes another")
    for note in view.notes:
        print(f"Note: {note}")


def _print_next(view: JobView) -> None:
    print("Next:")
    if view.state not in ENDED:
        print(f"  harvester watch {view.id}")
    print(f"  harvester results {view.id} -o {view.id}.parquet")
    print(f"""  harvester sql "select * from results('{view.id}') limit 5\"""", flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
