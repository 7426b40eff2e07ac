"""Jobs whose rows mostly fail: whether one is stopped before it has spent the rest, and what it says then."""

from __future__ import annotations

MIN_ROWS = 100  # fewer say little about the others


def over_rate(rows: int, errors: int, max_share: float) -> bool:
    """Whether so many of ``rows`` failed that the job should stop. Never before `MIN_ROWS` rows, never for a share of 1."""
    return rows >= MIN_ROWS and errors > max_share * rows


def stop_message(job_id: str, rows: int, errors: int, max_share: float, example: str | None) -> str:
    failed = f"all {rows:,} rows so far" if rows == errors else f"{errors:,} of {rows:,} rows so far"
    last = f"; the last: {example}" if example else ""
    return (
        f"stopped early: {failed} failed, more than the share {max_share:g} of --max-error-rate{last}; its rows are kept; "
        f"go on with: harvester resume {job_id}, which stops again after {MIN_ROWS} rows like these"
    )


def all_failed_message(errors: int, example: str | None) -> str:
    return f"all {errors:,} rows ended as errors" + (f"; the last: {example}" if example else "")
