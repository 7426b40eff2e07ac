"""Jobs whose rows mostly fail: whether one is stopped before it has spent the rest, and what it says then."""

from __future__ import annotations

LEAST_ROWS = 100  # fewer say little about the others


def over_rate(rows: int, errors: int, most_share: float) -> bool:
    """Whether so many of ``rows`` failed that the job should stop. Never before `LEAST_ROWS` rows, never for a share of 1."""
    return rows >= LEAST_ROWS and errors > most_share * rows


def stop_message(job_id: str, rows: int, errors: int, most_share: float, example: str | None) -> str:
    failed = f"all {rows:,} rows so far" if rows == errors else f"{errors:,} of {rows:,} rows so far"
    last = f"; the last: {example}" if example else ""
    return (
        f"stopped early: {failed} failed, which is above --max-error-rate {most_share:g}{last}; its rows are kept; "
        f"continue with: harvester resume {job_id} (it stops again after {LEAST_ROWS} more rows like these)"
    )


def all_failed_message(errors: int, example: str | None) -> str:
    return f"all {errors:,} rows ended as errors" + (f"; the last: {example}" if example else "")
