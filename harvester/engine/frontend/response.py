"""The answer to an OpenAI request that came from a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Response:
    """``body``: JSON text, as it would be over HTTP, of an error too."""

    status_code: int
    body: str
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
