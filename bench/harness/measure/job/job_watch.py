"""A job at a server, from its submission to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from harvester.cli.client import Client
from harvester.errors import EngineError
from jobs.spec import JobRequest, JobView, SourceSpec
from jobs.states import ENDED, JobState

POLL_S = 0.25


def submit(client: Client, source: Path, *, max_tokens: int | None = None) -> tuple[JobView, float]:
    """A new ``summarize`` job over ``source``, and the seconds that its submission took."""
    request = JobRequest(source=SourceSpec(uri=str(source)), new=True, max_tokens=max_tokens)
    began_s = time.perf_counter()
    view, _ = client.submit(request)
    return view, time.perf_counter() - began_s


def ended(view: JobView) -> bool:
    return view.state in ENDED


def wait(client: Client, job_id: str, limit_s: float, until: Callable[[JobView], bool] = ended, poll_s: float = POLL_S) -> JobView:
    """The job as soon as ``until`` holds. Raises `EngineError` where it fails, or does not get there in ``limit_s``.

    Asking costs the server about 10 ms of CPU each time; ``poll_s`` keeps that out of what is measured.
    """
    end_s = time.monotonic() + limit_s
    while True:
        view = client.job(job_id)
        if view.state in ENDED and view.state is not JobState.COMPLETED:
            raise EngineError(f"job {job_id} is {view.state}: {view.message}")
        if until(view):
            return view
        if time.monotonic() > end_s:
            raise EngineError(f"job {job_id} has {view.rows_ok} of {view.rows_total} rows after {limit_s:.0f} s ({view.message})")
        time.sleep(poll_s)
