"""The eight states of a batch, and how they follow from those of its job.

    batch         job                                what happens there
    validating    none yet                           the input file is checked and becomes the job's rows
    failed        none, or failed                    a line is wrong, or the rows can no longer be read
    in_progress   queued, running, paused            rows are answered
    finalizing    completed, expired, failed         all parts are there; the output and error files are made of them
    completed     completed                          also where every request failed: then there is no output file
    expired       expired                            `completion_window` was over; rows never run are `batch_expired` lines
    cancelling    none; cancelling, cancelled        replicas give their leases back, then the files are made
    cancelled     none; cancelled                    what was done by then is in the files

An ended batch stays as it ended: resuming or retrying its job adds results for SQL, not to the files that were handed out.
"""

from __future__ import annotations

from enum import StrEnum

from jobs.states import ENDED, JobState


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED_BATCH = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})
CANCELLABLE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS})


class BatchStep(StrEnum):
    """What to do next for a batch."""

    VALIDATE = "validate"  # check the input file, enter the job
    BEGIN = "begin"  # the job is in the ledger: say so
    STOP = "stop"  # cancel the job
    WAIT = "wait"
    FINALIZE = "finalize"  # make the files, and end
    DROP = "drop"  # cancelled before there was a job
    LOSE = "lose"  # the job is gone: end as failed


def next_step(status: BatchStatus, job: JobState | None, held: int) -> BatchStep:
    """``job`` None: not in the ledger. ``held``: its slices that are leased now."""
    if job is None:
        return {BatchStatus.VALIDATING: BatchStep.VALIDATE, BatchStatus.CANCELLING: BatchStep.DROP}.get(status, BatchStep.LOSE)
    if job in ENDED:
        return BatchStep.WAIT if held else BatchStep.FINALIZE
    if status is BatchStatus.VALIDATING:
        return BatchStep.BEGIN
    if status is BatchStatus.CANCELLING and job is not JobState.CANCELLING:
        return BatchStep.STOP
    return BatchStep.WAIT


def final_status(status: BatchStatus, job: JobState) -> BatchStatus:
    """Final status of a batch whose job has ended. One being cancelled ends as cancelled, even where its last row was done first."""
    if status is BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    return BatchStatus(job.value)
