"""Token usage: one record for all levels, from a request in the engine to the view of a job."""

from __future__ import annotations

from pydantic import Field

from jobs.frozen import Frozen


class Usage(Frozen):
    """Tokens of one request, or of many together. Results, parts and jobs have fields and columns of these names."""

    prompt_tokens: int = 0
    cached_tokens: int = Field(default=0, description="Of the prompt tokens, those whose KV was there already.")
    output_tokens: int = 0
    preemptions: int = Field(default=0, description="How often a request lost its KV while it ran.")

    def __add__(self, other: Usage) -> Usage:
        if self is NONE_USED:  # most rows are one request
            return other
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            preemptions=self.preemptions + other.preemptions,
        )


NONE_USED = Usage()
