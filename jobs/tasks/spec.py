"""What a task is: a prompt over columns and the shape of its answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class AnswerKind(StrEnum):
    TEXT = "text"  # column ``output``: the answer as it came
    CHOICE = "choice"  # column ``output``: one of ``labels``, guided by the engine
    JSON = "json"  # one typed column for each property of ``json_schema``, guided by the engine


class Task(BaseModel):
    """A task, resolved: every option has been filled in, only ``{column}`` places are left in the prompt.

    ``{text}`` stands for the job's text column; any other ``{name}`` for the column of that name; ``{{`` and ``}}`` for braces.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    system: str | None = Field(default=None, description="System message, may hold places too.")
    prompt: str = Field(min_length=1, description="User message with {column} places.")
    combine: str | None = Field(default=None, description="User message that combines the answers for the parts of a long text.")
    answer: AnswerKind = AnswerKind.TEXT
    labels: tuple[str, ...] | None = Field(default=None, description="The answers allowed, with `answer: choice`.")
    json_schema: dict[str, Any] | None = Field(default=None, description="JSON schema of an object, with `answer: json`.")
    max_tokens: int = Field(default=128, ge=1, description="Maximum output tokens of one answer.")
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
