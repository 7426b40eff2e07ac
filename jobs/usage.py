"""What answering takes: the one record of tokens, from a request in the engine to the view of a job."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Usage(BaseModel):
    """Tokens of one request, or of many together. Results, parts and jobs have fields and columns of these names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: int = 0
    cached_tokens: int = Field(default=0, description="Of the prompt tokens, those whose KV was there already.")
    output_tokens: int = 0
    preemptions: int = Field(default=0, description="How often a request lost its KV while it ran.")

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


NONE_USED = Usage()
