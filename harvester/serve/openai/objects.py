"""OpenAI's objects, for our OpenAPI document. Answers are made of dictionaries; a test checks them against these models."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from jobs.batches.record import BatchError, Counts
from jobs.batches.states import BatchStatus

Item = TypeVar("Item")


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FileObject(Whole):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class FileDeleted(Whole):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchErrors(Whole):
    object: Literal["list"]
    data: list[BatchError]


class CachedTokens(Whole):
    cached_tokens: int


class ReasoningTokens(Whole):
    reasoning_tokens: int


class BatchUsage(Whole):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(Whole):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    usage: BatchUsage
    metadata: dict[str, str] | None


class Page(Whole, Generic[Item]):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def answers(shape: Any) -> dict[str, Any]:
    """Route arguments that put ``shape`` into the OpenAPI document, without validating each answer again."""
    return {"response_model": None, "responses": {200: {"model": shape}}}
