"""A batch as it is kept and as clients see it."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from jobs.access.limits import Limits
from jobs.batches.files import new_file_id
from jobs.batches.states import BatchStatus
from jobs.batches.window import parse_window
from jobs.frozen import Frozen
from jobs.spec import JobView
from jobs.usage import Usage

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_PAIRS = 16
Key = Annotated[str, StringConstraints(max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]


class ExpiresAfter(Frozen):
    """When a file goes away by itself, counted from when it was made."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000, description="An hour to 30 days.")


class BatchWish(Frozen):
    """Body of ``POST /v1/batches``."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: str = Field(description="Any duration: 24h, 90m, 1d12h.")
    metadata: dict[Key, Value] | None = Field(default=None, max_length=MAX_PAIRS)
    output_expires_after: ExpiresAfter | None = None


class BatchError(Frozen):
    """Why a batch failed; ``line`` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Counts(Frozen):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchUsage(Usage):
    """Of all requests of a batch."""

    reasoning_tokens: int = Field(default=0, description="Of the output tokens.")

    def to_openai(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }


class BatchRecord(Frozen):
    """What is kept of a batch. Its job has the same id, so everything else is asked of the ledger."""

    id: str
    wish: BatchWish
    status: BatchStatus = BatchStatus.VALIDATING
    created_at_s: float
    expires_at_s: float
    owner: str | None = Field(default=None, description="Name of the API key that made it. None: of a server without keys.")
    limits: Limits = Field(default=Limits(), description="Of that key, when it made the batch.")
    model: str | None = None
    errors: tuple[BatchError, ...] = ()
    reached_at_s: dict[BatchStatus, float] = Field(default_factory=dict, description="When each state was first reached.")
    # Chosen at the start: files made again after a death in between replace the first ones.
    output_id: str
    error_id: str
    output_file_id: str | None = Field(default=None, description="`output_id`, once there is such a file.")
    error_file_id: str | None = None
    counts: Counts | None = Field(default=None, description="Of the files; None before they are made.")
    usage: BatchUsage | None = None

    @classmethod
    def of(cls, wish: BatchWish, now_s: float, owner: str | None = None, limits: Limits | None = None) -> BatchRecord:
        """A new batch. Raises `ParameterError` for an invalid completion window."""
        window_s = parse_window(wish.completion_window)
        return cls(
            id=f"batch_{secrets.token_hex(12)}",
            wish=wish,
            owner=owner,
            limits=limits or Limits(),
            created_at_s=now_s,
            expires_at_s=now_s + window_s,
            output_id=new_file_id(),
            error_id=new_file_id(),
        )

    def reach(self, status: BatchStatus, now_s: float, **changes: Any) -> BatchRecord:
        """The record in ``status``, with other fields changed too."""
        reached = {**self.reached_at_s, status: self.reached_at_s.get(status, now_s)}
        return self.model_copy(update={"status": status, "reached_at_s": reached, **changes})

    def to_openai(self, job: JobView | None) -> dict[str, Any]:
        """OpenAI's batch object. ``job``: view of its job; None before there is one, or where the record has its counts."""
        wish = self.wish
        errors = {"object": "list", "data": [error.model_dump() for error in self.errors]} if self.errors else None
        counts, usage = self.counts or _counts_of(job), self.usage or _usage_of(job)
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": wish.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": wish.input_file_id,
            "completion_window": wish.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created_at_s),
            "in_progress_at": self._at(BatchStatus.IN_PROGRESS),
            "expires_at": int(self.expires_at_s),
            "finalizing_at": self._at(BatchStatus.FINALIZING),
            "completed_at": self._at(BatchStatus.COMPLETED),
            "failed_at": self._at(BatchStatus.FAILED),
            "expired_at": self._at(BatchStatus.EXPIRED),
            "cancelling_at": self._at(BatchStatus.CANCELLING),
            "cancelled_at": self._at(BatchStatus.CANCELLED),
            "request_counts": counts.model_dump(),
            "usage": usage.to_openai(),
            "metadata": wish.metadata,
        }

    def _at(self, status: BatchStatus) -> int | None:
        at_s = self.reached_at_s.get(status)
        return None if at_s is None else int(at_s)


def _counts_of(job: JobView | None) -> Counts:
    return Counts() if job is None else Counts(total=job.rows_total, completed=job.rows_ok, failed=job.rows_error)


def _usage_of(job: JobView | None) -> BatchUsage:
    return BatchUsage() if job is None else BatchUsage(**job.model_dump(include=set(Usage.model_fields)))
