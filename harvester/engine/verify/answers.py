"""The answers of the two engines, as they are passed from process to process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harvester.engine.frontend.engine import Top


@dataclass(frozen=True, slots=True)
class Stock:
    """Stock vLLM's answers. ``tops``: the likeliest tokens at each position of each answer. ``tie``: see `harvester.engine.verify.ties`."""

    tokens: list[list[int]]
    tops: Sequence[Sequence[Top]]
    tie: float
    request_blocks: int  # KV blocks that a request of `subject.CONTEXT_TOKENS` may hold, of all groups of layers
    longest_tokens: int  # prompt and answer


@dataclass(frozen=True, slots=True)
class Pressed:
    """Harvester's answers in each turn, and counts of the pressure it was under meanwhile."""

    turns: list[list[list[int]]]
    ended_steps: int
    preempted: int
    stored_blocks: int
    loaded_blocks: int
    failed_copies: int
