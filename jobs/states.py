"""The states of a job and of a slice, and the one table of allowed transitions."""

from __future__ import annotations

from enum import StrEnum

from jobs.errors import StateError


class JobState(StrEnum):
    QUEUED = "queued"  # accepted, no slice leased yet
    RUNNING = "running"  # at least one slice was leased
    PAUSED = "paused"  # no new leases; running rows were aborted
    CANCELLING = "cancelling"  # no new leases; replicas are still giving theirs back
    CANCELLED = "cancelled"
    COMPLETED = "completed"  # every row has a result, ok or error
    FAILED = "failed"  # cannot go on: its source changed or cannot be read, or too many rows failed
    EXPIRED = "expired"  # its deadline passed


TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED, JobState.EXPIRED, JobState.COMPLETED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.PAUSED, JobState.CANCELLING, JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED}
    ),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.FAILED, JobState.EXPIRED, JobState.COMPLETED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.FAILED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),  # resume takes up what is left
    JobState.COMPLETED: frozenset({JobState.QUEUED}),  # retry of failed rows
    JobState.FAILED: frozenset({JobState.QUEUED, JobState.CANCELLED}),  # resume after the cause is gone
    JobState.EXPIRED: frozenset({JobState.QUEUED}),
}

ACTIVE = frozenset({JobState.QUEUED, JobState.RUNNING})
ENDED = frozenset({JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED})


class SliceState(StrEnum):
    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"


def check_transition(job_id: str, now: JobState, then: JobState) -> None:
    """Raise `StateError` where the table forbids ``now`` → ``then``."""
    if then not in TRANSITIONS[now]:
        allowed = ", ".join(sorted(TRANSITIONS[now]))
        raise StateError(f"job {job_id} is {now} and cannot become {then}; from {now} it can become: {allowed}")
