"""What the two engines answered, as it is handed from process to process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harvester.engine.frontend.engine import Top


@dataclass(frozen=True, slots=True)
class Stock:
    """``tops``: the likeliest tokens at each place of each answer. ``tie``: see `harvester.engine.verify.ties`."""

    tokens: list[list[int]]
    tops: Sequence[Sequence[Top]]
    tie: float
    block_tokens: int
    longest_tokens: int  # prompt and answer


@dataclass(frozen=True, slots=True)
class Pressed:
    """Of harvester: the answers of each turn, and what was done to it meanwhile."""

    turns: list[list[list[int]]]
    ended_steps: int
    preempted: int
    stored_blocks: int
    loaded_blocks: int
    failed_copies: int
