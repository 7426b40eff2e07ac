"""Commands on existing jobs: show, watch, and change their state."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from harvester.cli.completion import job_ids
from harvester.cli.invocation import Invocation, command
from harvester.cli.job.deadline import parse_deadline
from harvester.cli.job.progress import Views, event_of, failure, updates
from harvester.cli.job.progress import show as show_progress
from harvester.cli.job.text import NO_SERVER, job_lines, job_table
from harvester.cli.table import visible
from harvester.errors import HarvesterError, NotFoundError, StorageError, UnreachableError
from jobs.spec import JobChange, JobView
from jobs.states import ACTIVE, ENDED, JobState
from jobs.storage.place import known_folder

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer()

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job id, or latest.", show_default=False, autocompletion=job_ids)]
SomeJobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Job id. Default: the latest job.", show_default=False, autocompletion=job_ids)
]
DeadlineOption = Annotated[str | None, typer.Option("--deadline", metavar="WHEN", help="New deadline: 6h, 18:30, 2030-01-31T18:30.")]


@command(app)
def jobs(
    here: Invocation,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum jobs to print.")] = 20,
) -> None:
    """List jobs, newest first. Works without a server too.

    \b
    Example:
        harvester jobs
    """
    views, older = newest_views(here, limit)
    if here.json:
        here.print_json({"jobs": [view.model_dump(mode="json") for view in views]})
        return
    if not views:
        print("No jobs yet; make one with: harvester submit docs.parquet --task summarize")
        return
    print(*job_table(views), sep="", end="")
    if older:
        print(f"... and {older} older; --limit shows more")


@command(app)
def show(here: Invocation, job: SomeJobArgument = "latest") -> None:
    """Show state, progress and errors of a job. Works without a server too.

    \b
    Example:
        harvester show docs-7f3a
    """
    reached = here.try_reach()
    if reached is None:
        view = pick(all_views(here), job)
    else:
        with reached[0] as client:
            view = client.job(job)
    _print_view(here, view)


@command(app)
def watch(
    here: Invocation,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB...", help="Job ids. Default: all jobs that have not ended.", show_default=False, autocompletion=job_ids
        ),
    ] = None,
) -> None:
    """Watch jobs until they have ended. Exits with 1 if one failed.

    Shows a bar for each job. With --json, prints a line for each change; its event is job (first seen), state, progress, message
    or ended.

    \b
    Example:
        harvester watch docs-7f3a
        harvester watch --json > events.jsonl
    """
    client, _ = here.reach()
    with client:
        asked = jobs or [view.id for view in client.active()] or ["latest"]
        changes = updates(client, asked)
        if here.json:
            ended = _print_events(here, changes)
        else:
            ended = show_progress(changes)
            for view in ended.values():
                print(*job_lines(view), sep="\n")
    faults = [fault for view in ended.values() if (fault := failure(view))]
    if faults:
        raise HarvesterError("; ".join(faults))


def _print_events(here: Invocation, changes: Iterator[JobView]) -> Views:
    last: Views = {}
    for view in changes:
        here.print_json({"event": event_of(view, last.get(view.id)), **view.model_dump(mode="json")})
        last[view.id] = view
    return last


@command(app)
def cancel(here: Invocation, job: JobArgument) -> None:
    """Cancel a job. Finished rows stay in its results; resume computes the others.

    \b
    Example:
        harvester cancel docs-7f3a
    """
    _change(here, job, "cancel")


@command(app)
def pause(here: Invocation, job: JobArgument) -> None:
    """Pause a job.

    Finished rows are kept. Rows in flight are computed again after resume.

    \b
    Example:
        harvester pause docs-7f3a
    """
    _change(here, job, "pause")


@command(app)
def resume(
    here: Invocation,
    job: JobArgument,
    deadline: DeadlineOption = None,
    weight: Annotated[float | None, typer.Option("--weight", metavar="X", min=0.001, max=1000.0, help="New weight of the job.")] = None,
    max_error_rate: Annotated[
        float | None, typer.Option("--max-error-rate", metavar="X", min=0.0, max=1.0, help="New share of failed rows that stops the job.")
    ] = None,
) -> None:
    """Resume a paused, cancelled, expired or failed job.

    Remove the cause of a failure first. A deadline that has passed is dropped unless a new one is given. The options also change
    a running job.

    \b
    Example:
        harvester resume docs-7f3a
        harvester resume docs-7f3a --deadline 6h --weight 3
    """
    change = JobChange(
        deadline_at_s=None if deadline is None else parse_deadline(deadline, time.time()), weight=weight, max_error_rate=max_error_rate
    )
    changed = change != JobChange()
    client, _ = here.reach()
    with client:
        view = client.adjust(job, change) if changed else client.job(job)
        if not (changed and view.state in ACTIVE):
            view = client.change(job, "resume")
    _print_change(here, view)


@command(app)
def retry(here: Invocation, job: JobArgument, deadline: DeadlineOption = None) -> None:
    """Compute the failed rows of a job again.

    Rows with status ok stay as they are. A deadline that has passed is dropped unless a new one is given.

    \b
    Example:
        harvester retry docs-7f3a
        harvester retry docs-7f3a --deadline 6h
    """
    due = None if deadline is None else parse_deadline(deadline, time.time())
    client, _ = here.reach()
    with client:
        if due is not None and client.job(job).state in ENDED:  # retry refuses any other job, which must keep its deadline
            client.adjust(job, JobChange(deadline_at_s=due))
        view = client.change(job, "retry")
    _print_change(here, view)


@command(app)
def rm(here: Invocation, job: JobArgument) -> None:
    """Remove an ended job with its results, its spool, and the input that was uploaded or piped for it.

    Nothing of it can be brought back. A job that goes on must be cancelled first.

    \b
    Example:
        harvester rm docs-7f3a
    """
    client, _ = here.reach()
    with client:
        view = client.remove(job)
    if here.json:
        here.print_json({"id": view.id, "removed": True, "rows_total": view.rows_total, "state": view.state})
    else:
        print(f"removed job {view.id} and its {view.rows_ok + view.rows_error:,} rows of results")


def _change(here: Invocation, job: str, verb: str) -> None:
    client, _ = here.reach()
    with client:
        view = client.change(job, verb)
    _print_change(here, view)


def _print_change(here: Invocation, view: JobView) -> None:
    if here.json:
        here.print_json(view.model_dump(mode="json"))
    else:
        print(visible(f"job {view.id} is {view.state}" + (f": {view.message}" if view.message else "")))


def _print_view(here: Invocation, view: JobView) -> None:
    if here.json:
        here.print_json(view.model_dump(mode="json"))
    else:
        print(*job_lines(view), sep="\n")


def all_views(here: Invocation) -> list[JobView]:
    """All jobs, newest first: from the server, else from the ledger itself."""
    return newest_views(here, None)[0]


def newest_views(here: Invocation, limit: int | None) -> tuple[list[JobView], int]:
    """The newest ``limit`` jobs, newest first, and how many older ones there are. None: all."""
    try:
        client, _ = here.reach()
    except UnreachableError:
        if here.url_given:
            raise
    else:
        with client:
            return client.newest(limit)
    from jobs.ledger.store.place import read_ledger  # loads Arrow, not needed where a server answers

    table = read_ledger(here.state_dir, "jobs")
    lines = [] if table is None else _newest_first(table)
    return [_stored_view(here, line) for line in lines[:limit]], len(lines) - len(lines[:limit])


def _newest_first(table: pa.Table) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = table.to_pylist()
    return sorted(lines, key=lambda line: (line["created_at_s"], line["id"]), reverse=True)


def _stored_view(here: Invocation, line: dict[str, Any]) -> JobView:
    """A ledger row as the server would show it, without what only a running server knows."""
    spec = json.loads(line["spec"])
    known = {name: value for name, value in line.items() if name in JobView.model_fields and name != "notes"}
    derived = {
        "rows_running": 0,
        "offline_tokens_per_s": None,
        "eta_s": None,
        "results": known_folder(here.state_dir).results_address(line["id"]),
    }
    derived |= {name: spec[name] for name in ("weight", "deadline_at_s") if name in spec}
    try:
        view = JobView.model_validate(derived | known)
    except ValidationError as error:
        raise StorageError(f"the ledger in {here.state_dir} was written by another version: {error.errors()[0]['msg']}") from error
    return view.model_copy(update={"message": NO_SERVER}) if view.state in (JobState.QUEUED, JobState.RUNNING) else view


def pick(views: list[JobView], job: str) -> JobView:
    if job == "latest" and views:
        return views[0]
    for view in views:
        if view.id == job:
            return view
    known = ", ".join(view.id for view in views[:5]) or "none yet"
    raise NotFoundError(f"unknown job {job}; the newest are: {known}")
