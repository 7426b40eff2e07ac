"""Text lines on a job, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from harvester.cli.table import render, screen_columns, visible
from jobs.spec import JobView
from jobs.states import JobState

NO_SERVER = "no server runs, so it waits; start one with: harvester serve"
_COLUMNS = ("job", "state", "rows", "done", "errors", "tokens/s", "time left", "task", "source")


def job_table(views: Sequence[JobView]) -> Iterator[str]:
    return render(_COLUMNS, [_cells(view) for view in views], right=(2, 3, 4, 5, 6), screen=screen_columns())


def _cells(view: JobView) -> list[str]:
    left = duration(view.eta_s) if view.eta_s and view.state in (JobState.QUEUED, JobState.RUNNING) else ""
    state = f"{view.state.value}, no server" if view.message == NO_SERVER else view.state.value
    cells = [view.id, state, f"{view.rows_total:,}", f"{share_done(view):.0%}", f"{view.rows_error:,}"]
    return [*cells, rate(view.offline_tokens_per_s), left, view.task, view.source]


def job_lines(view: JobView) -> Iterator[str]:
    """One fact per line, as ``name  value``. If every row failed, that comes first."""
    if view.rows_error and not view.rows_ok:
        yield f"every row so far failed ({view.rows_error:,}); see: harvester results {view.id} --errors"
    facts = {
        "job": view.id,
        "state": view.state.value + (f": {view.message}" if view.message else ""),
        "rows": f"{rows_done(view):,} of {view.rows_total:,} done ({share_done(view):.0%})",
        "errors": f"{view.rows_error:,}",
        "truncated": f"{view.rows_truncated:,}",
        **_cut_off(view),
        "recomputed": f"{view.rows_recomputed:,}",
        "tokens": f"{view.prompt_tokens:,} prompt ({view.cached_tokens:,} cached), {view.output_tokens:,} output",
        "tokens/s": rate(view.offline_tokens_per_s) or "unknown",
        "time left": "unknown" if view.eta_s is None else time_left(view),
        **_deadline(view),
        "preemptions": f"{view.preemptions:,}",
        "task": view.task,
        "model": view.model,
        "source": view.source,
        "results": view.results,
    }
    yield from (f"{name:<12} {visible(value)}" for name, value in facts.items())
    yield from (f"{'note':<12} {visible(note)}" for note in view.notes)


def time_left(view: JobView) -> str:
    """Estimated time left, with the interval in which four of five jobs end."""
    if view.eta_low_s is None or view.eta_high_s is None:
        return duration(view.eta_s or 0.0)
    return f"{duration(view.eta_s or 0.0)} ({duration(view.eta_low_s)} to {duration(view.eta_high_s)})"


def _cut_off(view: JobView) -> dict[str, str]:
    count = view.rows_cut_off
    return {"cut off": f"{count:,} answer{'' if count == 1 else 's'} ended at max_tokens; raise --max-tokens"} if count else {}


def _deadline(view: JobView) -> dict[str, str]:
    facts = {} if view.weight == 1.0 else {"weight": f"{view.weight:g}"}
    if view.deadline_at_s is not None:
        at = datetime.fromtimestamp(view.deadline_at_s).astimezone().isoformat(" ", "minutes")
        facts["deadline"] = at + (f": {view.standing}" if view.standing else "")
    return facts


def progress_line(view: JobView) -> str:
    parts = [f"{view.id} {view.state}", f"{rows_done(view):,}/{view.rows_total:,} rows ({share_done(view):.0%})"]
    if view.rows_error:
        parts.append(f"{view.rows_error:,} error{'' if view.rows_error == 1 else 's'}")
    if view.offline_tokens_per_s:
        parts.append(f"{rate(view.offline_tokens_per_s)} tokens/s")
    if view.eta_s and view.state is JobState.RUNNING:
        parts.append(f"{time_left(view)} left")
    if view.standing:
        parts.append(view.standing)
    if view.message:
        parts.append(view.message)
    return visible(", ".join(parts))


def rows_done(view: JobView) -> int:
    """Rows with a result, published or not yet, without those that are asked again."""
    return min(view.rows_ok + view.rows_error - view.rows_to_retry + view.rows_running, view.rows_total)


def share_done(view: JobView) -> float:
    """Rounded down, so that 100% means all rows."""
    return rows_done(view) * 100 // max(view.rows_total, 1) / 100


def rate(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f"{tokens_per_s:,.0f}"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 05 min``, ``2 d 4 h``."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
