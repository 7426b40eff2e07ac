"""Follow jobs to their end: live bars on a terminal, one line per change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from harvester.api.flow import PATIENCE_S
from harvester.cli.client import Client
from harvester.cli.job.text import progress_line, rows_done, share_done
from harvester.errors import NoReplicaError, UnreachableError
from jobs.spec import JobView
from jobs.states import ENDED, JobState

POLL_S = 0.5

Sleep = Callable[[float], object]
Clock = Callable[[], float]
Views = dict[str, JobView]  # the last one of each job, by its id


def updates(client: Client, jobs: Sequence[str], sleep: Sleep = time.sleep, clock: Clock = time.monotonic) -> Iterator[JobView]:
    """Yield the jobs' views now and at each change, until all have ended and published their rows.

    Waits up to `PATIENCE_S`, by ``clock``, for a server that does not answer, or has no replica, then raises that.
    """
    last: Views = {view.id: view for view in (client.job(job) for job in dict.fromkeys(jobs))}
    yield from (view for view in last.values() if not _publishes(view))
    away_s = 0.0
    while open_jobs := [job for job, view in last.items() if view.state not in ENDED or _publishes(view)]:
        began_s = clock()
        sleep(POLL_S)
        try:
            views = [client.job(job) for job in open_jobs]
        except (UnreachableError, NoReplicaError):
            away_s += clock() - began_s
            if away_s > PATIENCE_S:
                raise
            continue
        away_s = 0.0
        for view in views:
            if view != last[view.id]:
                last[view.id] = view
                if not _publishes(view):
                    yield view


def _publishes(view: JobView) -> bool:
    """Whether the job has ended but replicas still publish its last rows."""
    return view.state in ENDED and view.rows_running > 0


def show(views: Iterator[JobView]) -> Views:
    """Show progress on stderr; returns the last view of each job."""
    return _bars(views) if sys.stderr.isatty() else _lines(views)


def follow(client: Client, job: str, sleep: Sleep = time.sleep) -> JobView:
    """Show one job's progress until it has ended; returns how it ended."""
    (view,) = show(updates(client, [job], sleep)).values()
    return view


def event_of(view: JobView, before: JobView | None) -> str:
    """What a change is called in an event line: ``job`` at first sight, then ``state``, ``ended``, ``message`` or ``progress``."""
    if view.state in ENDED:
        return "ended"
    if before is None:
        return "job"
    if view.state is not before.state:
        return "state"
    return "message" if view.message != before.message else "progress"


def failure(view: JobView) -> str | None:
    """Why an ended job counts as failed: it is not completed, or no row was answered. None: it succeeded."""
    if view.state is not JobState.COMPLETED:
        return f"job {view.id} is {view.state}{f': {view.message}' if view.message else ''}"
    if view.rows_ok == 0:
        return f"all {view.rows_error:,} rows of job {view.id} ended as errors; see harvester results {view.id} --errors"
    return None


def _bars(views: Iterator[JobView]) -> Views:
    last: Views = {}
    bars: dict[str, TaskID] = {}
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for view in views:
            last[view.id] = view
            if view.id not in bars:
                bars[view.id] = progress.add_task("", total=None)
            progress.update(bars[view.id], total=view.rows_total, completed=rows_done(view), description=progress_line(view))
    for view in last.values():
        print(progress_line(view), file=sys.stderr)
    return last


def _lines(views: Iterator[JobView]) -> Views:
    """Print a line for each tenth of the rows and each change of state."""
    last: Views = {}
    shown: dict[str, object] = {}
    for view in views:
        step = (view.state, int(share_done(view) * 10), view.message, view.boost > 1.0, view.guaranteed_share > 0.0)
        if step != shown.get(view.id):
            print(progress_line(view), file=sys.stderr, flush=True)
        shown[view.id] = step
        last[view.id] = view
    return last
