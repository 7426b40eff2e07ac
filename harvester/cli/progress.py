"""Follow a job to its end: a live bar on a terminal, a line when something changed elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harvester.cli.client import Client
from harvester.cli.jobtext import progress_line, rows_done, share_done
from harvester.errors import UnreachableError
from jobs.spec import JobView
from jobs.states import ENDED, JobState

POLL_S = 0.5
PATIENCE_S = 30.0  # a server that restarts takes the job up again

Sleep = Callable[[float], None]


def updates(client: Client, job_id: str, sleep: Sleep = time.sleep) -> Iterator[JobView]:
    """How the job stands now, then each time that differs, until it has ended.

    A server that is away is waited for `PATIENCE_S`; then `UnreachableError`.
    """
    last: JobView | None = None
    away_s = 0.0
    while last is None or last.state not in ENDED:
        if last is not None:
            sleep(POLL_S)
        try:
            view = client.job(last.id if last else job_id)
        except UnreachableError:
            away_s += POLL_S
            if last is None or away_s > PATIENCE_S:
                raise
            continue
        away_s = 0.0
        if view != last:
            yield view
        last = view


def follow(client: Client, job_id: str, sleep: Sleep = time.sleep) -> JobView:
    """Show progress on stderr until the job has ended; returns how it ended."""
    views = updates(client, job_id, sleep)
    return _bar(views) if sys.stderr.isatty() else _plain(views)


def failure(view: JobView) -> str | None:
    """Why an ended job is no success, or None: not completed, or not one row of it answered."""
    if view.state is not JobState.COMPLETED:
        return f"job {view.id} is {view.state}{f': {view.message}' if view.message else ''}"
    if view.rows_ok == 0:
        return f"all {view.rows_error:,} rows of job {view.id} ended as errors; see harvester results {view.id} --errors"
    return None


def _bar(views: Iterator[JobView]) -> JobView:
    columns = (BarColumn(bar_width=None), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        for view in views:
            progress.update(task, total=view.rows_total, completed=rows_done(view), description=progress_line(view))
    print(progress_line(view), file=sys.stderr)
    return view


def _plain(views: Iterator[JobView]) -> JobView:
    """A line for each tenth of the rows and each change of state: a log is read later."""
    shown = None
    for view in views:
        step = (view.state, int(share_done(view) * 10), view.message, view.boost > 1.0, view.guaranteed_share > 0.0)
        if step != shown:
            print(progress_line(view), file=sys.stderr, flush=True)
        shown = step
    return view
